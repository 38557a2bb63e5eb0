"""Weights that are quantized once for many forward passes, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import qat_lib.torch
from qat_lib.torch.nn import QuantLinear

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    ).eval()


def quantized() -> torch.nn.Module:
    model = qat_lib.torch.quantize_model(network(), example_input=X)
    qat_lib.torch.calibrate(model, [X])
    return model.eval()


def outputs(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(X)


def weights_of(model: torch.nn.Module) -> list[qat_lib.torch.TensorQuantizer]:
    return [each for each in qat_lib.torch.model_quantizers(model).values() if each.of_weight]


def test_outputs_stay_the_same_bit_for_bit() -> None:
    model = quantized()
    expected, before = outputs(model), [each.weight.clone() for each in weights_of(model)]
    with qat_lib.torch.folded_weights(model):
        assert torch.equal(outputs(model), expected)
        for quantizer, trained in zip(weights_of(model), before, strict=True):
            assert not quantizer.enabled
            assert not torch.equal(quantizer.weight, trained)
    for quantizer, trained in zip(weights_of(model), before, strict=True):
        assert quantizer.enabled
        assert torch.equal(quantizer.weight, trained)
    assert torch.equal(outputs(model), expected)


def test_the_parameters_and_their_gradients_stay_the_same_objects() -> None:
    model = quantized()
    before = list(model.parameters())
    with qat_lib.torch.folded_weights(model):
        pass
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert all(each.requires_grad for each in before)


def test_an_error_within_the_block_leaves_the_model_as_it_was() -> None:
    model = quantized()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ZeroDivisionError), qat_lib.torch.folded_weights(model):
        raise ZeroDivisionError
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def fill(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight.fill_(1.0)


def replace(weight: torch.nn.Parameter) -> None:
    weight.data = torch.ones_like(weight)


@pytest.mark.parametrize("assign", [fill, replace])
def test_a_weight_that_is_set_keeps_its_value(
    assign: Callable[[torch.nn.Parameter], None],
) -> None:
    model = quantized()
    weight = weights_of(model)[-1].weight
    with qat_lib.torch.folded_weights(model):
        assign(weight)
    assert torch.equal(weight, torch.ones_like(weight))


def test_a_model_that_changes_its_type_within_the_block_gets_its_weights_back() -> None:
    model = quantized()
    trained = weights_of(model)[-1].weight.detach().clone()
    with qat_lib.torch.folded_weights(model):
        model.double()
    assert torch.equal(weights_of(model)[-1].weight, trained.double())


def test_a_weight_that_is_not_finite_comes_back() -> None:
    model = quantized()
    weight = weights_of(model)[-1].weight
    with torch.no_grad():
        weight[0, 0] = torch.nan
    broken = weight.detach().clone()
    with qat_lib.torch.folded_weights(model):
        pass
    assert torch.equal(weight.isnan(), broken.isnan())
    assert torch.equal(weight.nan_to_num(), broken.nan_to_num())


def test_a_weight_of_two_modules_stays_as_it_is() -> None:
    model = torch.nn.Sequential(QuantLinear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    before = model[0].weight.detach().clone()
    with qat_lib.torch.folded_weights(model):
        assert torch.equal(model[0].weight, before)
        assert model[0].weight_quantizer.enabled


def test_quantizers_that_are_off_stay_off() -> None:
    model = quantized()
    off = weights_of(model)[0]
    off.disable()
    before = off.weight.detach().clone()
    with qat_lib.torch.folded_weights(model):
        assert torch.equal(off.weight, before)
    assert not off.enabled


def test_a_moving_range_stays_where_it_is_in_training_mode() -> None:
    layer = QuantLinear(4, 4)
    quantizer = layer.weight_quantizer
    quantizer.range_policy = "ema"
    quantizer.amax = 2.0 * quantizer.amax
    before = quantizer.amax.clone()
    layer.train()
    with qat_lib.torch.folded_weights(layer):
        pass
    assert torch.equal(quantizer.amax, before)
    assert layer.training
