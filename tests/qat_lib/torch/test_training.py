"""Helpers for training loops: batch norm, ranges, averages, oscillation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import qat_lib.torch
from qat_lib.core.moving_average import decay_at
from qat_lib.core.spec import QuantizationSpec
from qat_lib.errors import CalibrationError, SpecError
from qat_lib.torch.training import (
    WeightAverage,
    WeightOscillation,
    batch_norms,
    freeze_batch_norm,
    freeze_ranges,
    range_parameters,
    reestimate_batch_norm,
)

X = torch.from_numpy(np.random.default_rng(0).normal(2.0, 3.0, (24, 4)).astype(np.float32))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.BatchNorm1d(3)), nn.Linear(3, 2))


def quantized(policy: str) -> nn.Module:
    module = network().eval()
    plan = qat_lib.torch.plan_quantization(module, example_input=X).with_range_policy(policy)
    module = qat_lib.torch.apply_plan(module, plan, example_input=X)
    qat_lib.torch.calibrate(module, [X], freeze=False)
    return module


def test_freeze_batch_norm_stops_statistics_and_parameters() -> None:
    module = network().train()
    (norm,) = batch_norms(module)
    freeze_batch_norm(module)
    before = norm.running_mean.clone()
    module(X)
    assert torch.equal(norm.running_mean, before)
    assert [p.requires_grad for p in norm.parameters()] == [False, False]
    assert module.training


def test_reestimate_batch_norm_takes_the_mean_of_the_batches() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4, momentum=0.5)).eval()
    assert reestimate_batch_norm(module, [X[:8], (X[8:16], None), [X[16:]]]) == 1
    parts = X.split(8)
    torch.testing.assert_close(
        module[0].running_mean, torch.stack([part.mean(0) for part in parts]).mean(0)
    )
    torch.testing.assert_close(
        module[0].running_var, torch.stack([part.var(0) for part in parts]).mean(0)
    )
    assert module[0].momentum == 0.5
    assert not module.training
    assert not module[0].training


def test_reestimate_batch_norm_takes_no_more_batches_than_asked() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4))
    reestimate_batch_norm(module, X.split(8), batches=1)
    torch.testing.assert_close(module[0].running_mean, X[:8].mean(0))
    assert module[0].training


def test_reestimate_batch_norm_leaves_ranges() -> None:
    module = quantized("ema").train()
    before = {k: v.amax.clone() for k, v in qat_lib.torch.model_quantizers(module).items()}
    reestimate_batch_norm(module, [X * 100])
    for name, quantizer in qat_lib.torch.model_quantizers(module).items():
        assert torch.equal(quantizer.amax, before[name])
        assert quantizer.frozen == (quantizer.range_policy == "frozen")


def test_reestimate_batch_norm_needs_data() -> None:
    with pytest.raises(CalibrationError, match="Expected at least one batch of data"):
        reestimate_batch_norm(network(), [])


def test_reestimate_batch_norm_of_none_reads_no_data() -> None:
    assert reestimate_batch_norm(nn.Sequential(nn.Linear(1, 1)), iter([])) == 0


@pytest.mark.parametrize("policy", ["ema", "learned"])
def test_freeze_ranges_stops_every_range(policy: str) -> None:
    module = quantized(policy).train()
    freeze_ranges(module)
    before = {k: v.amax.clone() for k, v in qat_lib.torch.model_quantizers(module).items()}
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=1e-9)
    module(X * 9).square().sum().backward()
    optimizer.step()
    for name, quantizer in qat_lib.torch.model_quantizers(module).items():
        torch.testing.assert_close(quantizer.amax, before[name])


def test_learned_ranges_are_the_trained_steps() -> None:
    module = quantized("learned")
    quantizers = qat_lib.torch.model_quantizers(module).values()
    assert len(range_parameters(module)) == sum(not q.of_weight for q in quantizers) > 0
    assert range_parameters(quantized("ema")) == []


def test_weights_end_as_their_average() -> None:
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(1.0)
        average = WeightAverage(module, 0.6)
        expected = 1.0
        for step in range(1, 9):
            module.weight.fill_(float(step))
            average.step()
            expected = decay_at(0.6, step) * expected + (1 - decay_at(0.6, step)) * step
    with average.averaged():
        assert module.weight.item() == pytest.approx(expected)
    assert module.weight.item() == 8.0
    average.finish()
    assert module.weight.item() == pytest.approx(expected)
    assert module.weight.requires_grad


def test_an_impossible_decay_is_refused() -> None:
    with pytest.raises(SpecError, match=r"Expected a decay in \[0, 1\)"):
        WeightAverage(nn.Linear(1, 1), 1.0)


def four_bits() -> nn.Module:
    """A weight whose scale is 1, which its second element sets."""
    spec = QuantizationSpec()
    spec.add(name="0", num_bits=4, per_channel=False)
    module = nn.Sequential(nn.Linear(2, 1, bias=False)).eval()
    module = qat_lib.torch.quantize_model(module, "partial", spec, example_input=X[:2, :2])
    with torch.no_grad():
        weight_of(module).copy_(torch.tensor([[3.49, 7.0]]))
    return module


def weight_of(module: nn.Module) -> nn.Parameter:
    (weight,) = [p for p in module.parameters() if p.shape == (1, 2)]
    return weight


def push(module: nn.Module, oscillation: WeightOscillation, places: list[float]) -> list[float]:
    found = []
    for place in places:
        with torch.no_grad():
            weight_of(module)[0, 0] = place
        oscillation.step()
        found.append(weight_of(module)[0, 0].item())
    return found


def test_oscillating_weights_are_measured() -> None:
    module = four_bits()
    oscillation = WeightOscillation(module)
    assert push(module, oscillation, [3.6, 3.4]) == pytest.approx([3.6, 3.4])
    assert list(oscillation.shares.values()) == [0.5]
    assert list(oscillation.frozen_shares.values()) == [0.0]


def test_oscillating_weights_are_frozen_on_their_integer() -> None:
    module = four_bits()
    oscillation = WeightOscillation(module, freeze_above=0.005)
    assert push(module, oscillation, [3.6, 3.4, 3.6, 3.9]) == pytest.approx([3.6, 3.0, 3.0, 3.0])
    assert list(oscillation.frozen_shares.values()) == [0.5]
    assert weight_of(module).requires_grad


def test_a_float_module_has_nothing_to_measure() -> None:
    oscillation = WeightOscillation(network(), freeze_above=0.5)
    oscillation.step()
    assert oscillation.shares == {}
