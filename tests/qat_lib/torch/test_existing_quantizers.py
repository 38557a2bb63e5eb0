"""Quantizers that a PyTorch model has before quantization."""

from __future__ import annotations

import pytest
from torch import nn

from qat_lib.graph.traits import ExistingQuantizers
from qat_lib.torch import QuantDescriptor, TensorQuantizer
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.existing_quantizers import (
    existing_quantizers,
    input_quantizer,
    is_quantized,
)


def test_quantizer_quantizes_its_input_as_whole() -> None:
    whole = TensorQuantizer()
    assert existing_quantizers(whole) == ExistingQuantizers(inputs=(0,), quantizer=whole)
    by_channel = TensorQuantizer(QuantDescriptor(axis=0))
    assert existing_quantizers(by_channel) == ExistingQuantizers(quantizer=by_channel)


@pytest.mark.parametrize(
    ("is_input_on", "is_weight_on"), [(True, True), (False, True), (True, False)]
)
def test_a_quantized_module_quantizes_what_is_on(is_input_on: bool, is_weight_on: bool) -> None:
    module = quant_nn.QuantLinear(4, 4)
    if not is_input_on:
        module.input_quantizer.disable()
    if not is_weight_on:
        module.weight_quantizer.disable()
    found = existing_quantizers(module)
    assert found == ExistingQuantizers(inputs=(0,) if is_input_on else (), weights=is_weight_on)


def test_modules_without_one_quantizer_of_their_input() -> None:
    lstm = quant_nn.QuantLSTM(4, 4)
    assert is_quantized(lstm)
    assert existing_quantizers(lstm) == ExistingQuantizers()
    assert input_quantizer(lstm) is None
    pool = quant_nn.QuantMaxPool2d(2)
    assert input_quantizer(pool) is pool.input_quantizer


def test_float_modules_have_none() -> None:
    assert not is_quantized(nn.Linear(4, 4))
    assert existing_quantizers(nn.Linear(4, 4)) is None
