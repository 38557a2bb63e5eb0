"""Ranges in a model's state: saved, loaded, moved.

They are loaded where there was none, too, and moved with the model.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from qat_lib.torch.tensor_quant import QuantDescriptor
from qat_lib.torch.tensor_quantizer import TensorQuantizer

X = torch.linspace(-3, 3, 12).reshape(3, 4)


def model(**options: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), TensorQuantizer(QuantDescriptor(**options)))


def through_a_file(state: Any) -> Any:
    """Return a state saved and loaded by torch.save's safe form."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "options",
    [{}, {"axis": 0}, {"axis": 1, "num_bits": 4}, {"learn_amax": True}, {"range_policy": "ema"}],
    ids=str,
)
def test_state_loads_where_there_was_no_range(options: dict[str, Any]) -> None:
    source, target = model(**options), model(**options)
    source[1].amax = source[1].range_of(X)
    source[1].freeze()
    source[1].disable()
    target.load_state_dict(through_a_file(source.state_dict()))
    found = target[1]
    torch.testing.assert_close(found.amax, source[1].amax, rtol=0, atol=0)
    assert (found.enabled, found.frozen, found.calibrated) == (False, True, True)
    found.enable()
    source[1].enable()
    torch.testing.assert_close(found(X), source[1](X), rtol=0, atol=0)


@pytest.mark.parametrize("learned", [False, True])
def test_a_state_loads_into_another_policy(learned: bool) -> None:
    source, target = model(learn_amax=learned), model(learn_amax=not learned)
    source[1].amax = 2.5
    target.load_state_dict(source.state_dict())
    assert target[1].amax.item() == pytest.approx(2.5)
    assert target[1].calibrated


def test_state_of_float_model_loads_strictly() -> None:
    target = model()
    target.load_state_dict(nn.Sequential(nn.Linear(4, 4), nn.Identity()).state_dict())
    assert target[1].amax is None


def test_calibrated_model_misses_range_in_float_state() -> None:
    target = model(amax=1.0)
    state = nn.Sequential(nn.Linear(4, 4), nn.Identity()).state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*1\._amax"):
        target.load_state_dict(state)
    target.load_state_dict(state, strict=False)
    assert target[1].amax.item() == 1.0


def test_a_state_of_pytorch_quantization_loads() -> None:
    """It has ``_amax`` and nothing else of a quantizer."""
    target = model()
    state = {**nn.Linear(4, 4).state_dict(prefix="0."), "1._amax": torch.tensor(1.5)}
    target.load_state_dict(state)
    assert (target[1].amax.item(), target[1].calibrated) == (1.5, True)


def test_state_without_range_removes_it() -> None:
    target = model(amax=1.0)
    target.load_state_dict(model().state_dict())
    assert target[1].amax is None
    assert not target[1].calibrated


def test_an_unknown_key_is_named() -> None:
    target = model()
    state = {**target.state_dict(), "1.clip": torch.tensor(1.0)}
    with pytest.raises(RuntimeError, match=r"Unexpected key.*1\.clip"):
        target.load_state_dict(state)
    target.load_state_dict(state, strict=False)


def test_a_loaded_range_is_a_copy() -> None:
    source, target = model(amax=1.0), model()
    target.load_state_dict(source.state_dict())
    source[1].amax.fill_(9.0)
    assert target[1].amax.item() == 1.0


@pytest.mark.parametrize("learned", [False, True])
def test_a_range_stays_float32_in_half_precision(learned: bool) -> None:
    quantizer = model(amax=123456.789, learn_amax=learned).half()[1]
    assert quantizer.amax.dtype == torch.float32
    assert quantizer.amax.item() == pytest.approx(123456.789)
    assert quantizer(torch.tensor([3.0], dtype=torch.float16)).dtype == torch.float16


def test_range_follows_model_to_another_device() -> None:
    quantizer = model(amax=1.0).to("meta")[1]
    assert quantizer.amax.device.type == "meta"


def test_a_trained_step_loads_exactly() -> None:
    source, target = model(learn_amax=True), model(learn_amax=True)
    with torch.no_grad():
        source[1]._step.fill_(0.0123457)
    kept = target[1]._step
    target.load_state_dict(source.state_dict())
    assert target[1]._step is kept
    assert kept.item() == source[1]._step.item()
