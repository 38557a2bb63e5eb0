"""Replacement of names in torch.nn: on, off, nested, and after a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from qat_lib.errors import SpecError
from qat_lib.torch import nn as quant_nn
from qat_lib.torch import quant_modules

ORIGINALS = {name: getattr(nn, name) for name in quant_modules.REPLACED}


@pytest.fixture(autouse=True)
def _originals_afterwards() -> Iterator[None]:
    yield
    quant_modules.deactivate()
    assert {name: getattr(nn, name) for name in ORIGINALS} == ORIGINALS


def test_initialize_replaces_and_deactivate_restores() -> None:
    before = nn.Conv2d(1, 1, 1)
    quant_modules.initialize()
    for name in quant_modules.REPLACED:
        assert getattr(nn, name) is getattr(quant_nn, f"Quant{name}")
    assert nn.MaxPool2d is torch.nn.modules.pooling.MaxPool2d
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)
    )
    quant_modules.deactivate()
    assert model(torch.randn(1, 1, 4, 4)).shape == (1, 2)
    assert sum(isinstance(x, quant_nn.TensorQuantizer) for x in model.modules()) == 5
    assert type(before) is type(nn.Conv2d(1, 1, 1)) is ORIGINALS["Conv2d"]


def test_initialize_twice_is_undone_once() -> None:
    quant_modules.initialize()
    quant_modules.initialize(float_module_list=["Linear"])
    quant_modules.deactivate()
    assert nn.Conv2d is ORIGINALS["Conv2d"]


def test_initialize_leaves_named_modules() -> None:
    quant_modules.initialize(float_module_list=["Linear"])
    assert nn.Linear is ORIGINALS["Linear"]
    assert nn.Conv2d is quant_nn.QuantConv2d


def test_initialize_takes_custom_modules() -> None:
    class Other(quant_nn.QuantLinear):
        """A user's own."""

    before = nn.MaxPool2d
    custom = [(nn, "Linear", Other), (nn, "MaxPool2d", quant_nn.QuantMaxPool2d)]
    quant_modules.initialize(custom_quant_modules=custom)
    assert (nn.Linear, nn.MaxPool2d) == (Other, quant_nn.QuantMaxPool2d)
    quant_modules.deactivate()
    assert nn.MaxPool2d is before


def test_initialize_refuses_unknown_names_and_replaces_nothing() -> None:
    with pytest.raises(SpecError, match=r"Expected names among Conv1d.*Received: 'Conv4d'"):
        quant_modules.initialize(float_module_list=["Conv4d"])
    with pytest.raises(SpecError, match=r"class of 'torch\.nn'\. Received: 'Conv4d'"):
        quant_modules.initialize(custom_quant_modules=[(nn, "Conv4d", quant_nn.QuantConv2d)])
    assert nn.Conv1d is ORIGINALS["Conv1d"]


def test_the_block_restores_after_a_failure() -> None:
    def fail() -> None:
        with quant_modules.quantized_modules():
            raise ValueError(type(nn.Linear(1, 1)).__name__)

    with pytest.raises(ValueError, match="QuantLinear"):
        fail()
    assert nn.Linear is ORIGINALS["Linear"]


def test_blocks_nest() -> None:
    with quant_modules.quantized_modules(float_module_list=["Linear"]):
        with quant_modules.quantized_modules():
            assert nn.Linear is quant_nn.QuantLinear
        assert nn.Linear is ORIGINALS["Linear"]
        assert nn.Conv2d is quant_nn.QuantConv2d
    assert nn.Conv2d is ORIGINALS["Conv2d"]


def test_a_block_within_initialize_leaves_it_on() -> None:
    quant_modules.initialize()
    with quant_modules.quantized_modules(float_module_list=["Linear"]):
        pass
    assert nn.Linear is quant_nn.QuantLinear


def test_float_checkpoint_loads_into_replaced_model() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2, 2))

    source = build()
    with quant_modules.quantized_modules():
        target = build()
    target.load_state_dict(source.state_dict())
    for name, parameter in source.named_parameters():
        torch.testing.assert_close(target.get_parameter(name), parameter)


def test_replacement_helper_replaces_and_restores() -> None:
    helper = quant_modules.QuantModuleReplacementHelper()
    helper.prepare_state(["Linear"], [(nn, "Identity", nn.Flatten)])
    assert nn.Conv2d is ORIGINALS["Conv2d"]
    identity = nn.Identity
    helper.apply_quant_modules()
    assert nn.Conv2d is quant_nn.QuantConv2d
    assert nn.Linear is ORIGINALS["Linear"]
    assert nn.Identity is nn.Flatten
    helper.restore_float_modules()
    assert nn.Conv2d is ORIGINALS["Conv2d"]
    assert nn.Identity is identity
