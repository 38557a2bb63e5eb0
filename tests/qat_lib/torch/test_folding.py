"""Weights that are quantized once for many forward passes, in PyTorch."""

from __future__ import annotations

import torch
from torch_framework import network

import qat_lib.torch
from qat_lib.torch.nn import QuantLinear

X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def quantized() -> torch.nn.Module:
    model = qat_lib.torch.quantize_model(network(), example_input=X)
    qat_lib.torch.calibrate(model, [X])
    return model.eval()


def weights_of(model: torch.nn.Module) -> list[qat_lib.torch.TensorQuantizer]:
    return [each for each in qat_lib.torch.model_quantizers(model).values() if each.of_weight]


def test_the_parameters_and_their_gradients_stay_the_same_objects() -> None:
    model = quantized()
    before = list(model.parameters())
    with qat_lib.torch.folded_weights(model):
        pass
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))
    assert all(each.requires_grad for each in before)


def test_a_weight_that_is_replaced_keeps_its_value() -> None:
    model = quantized()
    weight = weights_of(model)[-1].weight
    with qat_lib.torch.folded_weights(model):
        weight.data = torch.ones_like(weight)
    assert torch.equal(weight, torch.ones_like(weight))


def test_a_model_that_changes_its_type_within_the_block_gets_its_weights_back() -> None:
    model = quantized()
    trained = weights_of(model)[-1].weight.detach().clone()
    with qat_lib.torch.folded_weights(model):
        model.double()
    assert torch.equal(weights_of(model)[-1].weight, trained.double())


def test_a_weight_of_two_modules_stays_as_it_is() -> None:
    model = torch.nn.Sequential(QuantLinear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    before = model[0].weight.detach().clone()
    with qat_lib.torch.folded_weights(model):
        assert torch.equal(model[0].weight, before)
        assert model[0].weight_quantizer.enabled


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
