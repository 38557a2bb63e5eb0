"""Quantized modules: the original's work on NumPy's quantization, bit for bit."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import quantization_oracle as oracle
import torch
from torch import nn

from qat_lib.torch import nn as quant_nn
from qat_lib.torch.tensor_quant import QuantDescriptor

SPATIAL = (7, 6, 5)

WEIGHTED = [
    *((f"Conv{rank}d", (4, 6, 3), {"stride": 2, "padding": 1}) for rank in (1, 2, 3)),
    ("Conv1d", (4, 6, 3), {"padding": "same", "bias": False}),
    ("Conv2d", (4, 8, 3), {"groups": 4, "padding": 2, "dilation": 2}),
    ("Conv2d", (4, 6, (3, 1)), {"padding": 1, "padding_mode": "circular"}),
    ("Conv3d", (4, 6, 2), {"padding": 1, "padding_mode": "replicate"}),
    *((f"ConvTranspose{rank}d", (4, 6, 3), {"stride": 2, "padding": 1}) for rank in (1, 2, 3)),
    ("ConvTranspose2d", (4, 6, 3), {"groups": 2, "dilation": 2, "bias": False}),
    ("Linear", (5, 3), {}),
    ("Linear", (5, 3), {"bias": False}),
]
UNWEIGHTED = [
    *((f"MaxPool{rank}d", (2,), {"stride": 1, "padding": 1}) for rank in (1, 2, 3)),
    *((f"AvgPool{rank}d", (2,), {"ceil_mode": True}) for rank in (1, 2, 3)),
    *((f"AdaptiveAvgPool{rank}d", (2,), {}) for rank in (1, 2, 3)),
    *((f"InstanceNorm{rank}d", (4,), {"affine": True}) for rank in (1, 2, 3)),
]


def pair(kind: str, args: Any, options: Any) -> tuple[nn.Module, Any]:
    """Return an original module and the quantized one with the same parameters."""
    torch.manual_seed(1)
    original = getattr(nn, kind)(*args, **options)
    quantized = getattr(quant_nn, f"Quant{kind}")(*args, **options)
    quantized.load_state_dict(original.state_dict())
    return original, quantized


def input_of(kind: str) -> np.ndarray:
    shape = (2, 4, 5) if kind == "Linear" else (2, 4, *SPATIAL[: int(kind[-2])])
    return np.random.default_rng(4).normal(size=shape).astype(np.float32)


def name_of(value: Any) -> str:
    return str(value) if isinstance(value, str) else ""


@pytest.mark.parametrize(("kind", "args", "options"), WEIGHTED, ids=name_of)
def test_weighted_modules_equal_the_oracle(kind: str, args: Any, options: Any) -> None:
    original, quantized = pair(kind, args, options)
    assert isinstance(quantized, type(original))
    x = input_of(kind)
    with torch.no_grad():
        found = quantized(torch.from_numpy(x))
        weight = original.weight.numpy()
        kept = oracle.range_of(weight, (1 if "Transpose" in kind else 0,))
        integers = oracle.fake_quantize(weight, kept, narrow_range=True)
        original.weight.copy_(torch.from_numpy(integers))
        expected = original(torch.from_numpy(oracle.fake_quantize(x, oracle.range_of(x, None))))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "args", "options"), UNWEIGHTED, ids=name_of)
def test_modules_without_weights_equal_the_oracle(kind: str, args: Any, options: Any) -> None:
    original, quantized = pair(kind, args, options)
    assert isinstance(quantized, type(original))
    x = input_of(kind)
    quantized.input_quantizer.amax = 1.3
    expected = original(torch.from_numpy(oracle.fake_quantize(x, 1.3)))
    torch.testing.assert_close(quantized(torch.from_numpy(x)), expected, rtol=0, atol=0)
    assert not hasattr(quantized, "weight_quantizer")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions_take_an_output_size(rank: int) -> None:
    original, quantized = pair(f"ConvTranspose{rank}d", (4, 6, 3), {"stride": 2})
    for quantizer in (quantized.input_quantizer, quantized.weight_quantizer):
        quantizer.disable()
    x = torch.randn(2, 4, *SPATIAL[:rank])
    size = [2 * side + 2 for side in SPATIAL[:rank]]
    torch.testing.assert_close(quantized(x, size), original(x, size), rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "args", "options"), WEIGHTED + UNWEIGHTED, ids=name_of)
def test_disabled_modules_are_the_originals(kind: str, args: Any, options: Any) -> None:
    original, quantized = pair(kind, args, options)
    for module in quantized.modules():
        if isinstance(module, quant_nn.TensorQuantizer):
            module.disable()
    x = torch.from_numpy(input_of(kind))
    torch.testing.assert_close(quantized(x), original(x), rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "args", "options"), WEIGHTED + UNWEIGHTED, ids=name_of)
def test_from_float_shares_the_parameters(kind: str, args: Any, options: Any) -> None:
    original, quantized = pair(kind, args, options)
    made = type(quantized).from_float(original.eval())
    x = torch.from_numpy(input_of(kind))
    torch.testing.assert_close(made(x), quantized.eval()(x), rtol=0, atol=0)
    assert not made.training
    for name, parameter in original.named_parameters():
        assert made.get_parameter(name) is parameter
    assert not [name for name, _ in original.named_modules() if "quantizer" in name]


def test_from_float_takes_descriptors() -> None:
    made = quant_nn.QuantLinear.from_float(
        nn.Linear(3, 2),
        quant_desc_input=QuantDescriptor(num_bits=4),
        quant_desc_weight=QuantDescriptor(num_bits=3),
    )
    assert (made.input_quantizer.num_bits, made.weight_quantizer.num_bits) == (4, 3)


def test_constructors_take_descriptors() -> None:
    per_tensor, four = QuantDescriptor(), QuantDescriptor(num_bits=4, unsigned=True)
    conv = quant_nn.QuantConv2d(3, 4, 1, quant_desc_weight=per_tensor, quant_desc_input=four)
    assert (conv.input_quantizer.num_bits, conv.input_quantizer.unsigned) == (4, True)
    assert conv.weight_quantizer.axis is None
    assert quant_nn.QuantMaxPool2d(2, quant_desc_input=four).input_quantizer.num_bits == 4
    with pytest.raises(TypeError, match="quant_desc_output"):
        quant_nn.QuantLinear(2, 2, quant_desc_output=four)
    with pytest.raises(TypeError, match="Unused keys: quant_desc_weight"):
        quant_nn.QuantAvgPool2d(2, quant_desc_weight=four)


def test_weights_leave_out_the_least_integer() -> None:
    plain = quant_nn.QuantLinear(2, 2, quant_desc_weight=QuantDescriptor())
    assert plain.weight_quantizer.narrow_range
    assert not plain.input_quantizer.narrow_range
    unsigned = quant_nn.QuantLinear(2, 2, quant_desc_weight=QuantDescriptor(unsigned=True))
    assert not unsigned.weight_quantizer.narrow_range


@pytest.mark.parametrize("policy", ["frozen", "current"])
def test_range_of_weight_is_known_without_data(policy: str) -> None:
    descriptor = QuantDescriptor(axis=0, range_policy=policy)
    linear = quant_nn.QuantLinear(3, 2, quant_desc_weight=descriptor)
    quantizer = linear.weight_quantizer
    assert quantizer.of_weight
    assert quantizer.calibrated
    assert not linear.input_quantizer.of_weight
    expected = linear.weight.detach().abs().amax(1, keepdim=True)
    torch.testing.assert_close(quantizer.amax, expected, rtol=0, atol=0)
    quantizer.fit_weight()
    with torch.no_grad():
        linear.weight.mul_(2)
    factor = {"frozen": 1, "current": 2}[policy]
    torch.testing.assert_close(quantizer.amax, factor * expected, rtol=0, atol=0)


def test_fixed_weight_range_follows_loaded_weight() -> None:
    linear, fresh = quant_nn.QuantLinear(3, 2), quant_nn.QuantLinear(3, 2)
    linear.weight_quantizer.fit_weight()
    state = nn.Linear(3, 2).state_dict()
    for each in (linear, fresh):
        each.load_state_dict(state)
    expected = state["weight"].abs().amax(1, keepdim=True)
    torch.testing.assert_close(linear.weight_quantizer._amax, expected, rtol=0, atol=0)
    assert fresh.weight_quantizer._amax is None


def test_learned_weight_range_starts_at_weight() -> None:
    descriptor = QuantDescriptor(axis=0, learn_amax=True)
    linear = quant_nn.QuantLinear(3, 2, quant_desc_weight=descriptor)
    assert "_weight_quantizer._step" in dict(linear.named_parameters())
    state = nn.Linear(3, 2).state_dict()
    linear.load_state_dict(state)
    expected = state["weight"].abs().amax(1, keepdim=True)
    torch.testing.assert_close(linear.weight_quantizer.amax, expected)
    trained = linear.weight_quantizer._step
    linear(torch.randn(4, 3)).pow(2).sum().backward()
    assert trained.grad.abs().sum() > 0


def test_copies_and_files_keep_weight_ties() -> None:
    linear = nn.Sequential(quant_nn.QuantLinear(3, 2))
    file = io.BytesIO()
    torch.save(linear, file)
    file.seek(0)
    for other in (copy.deepcopy(linear), torch.load(file, weights_only=False)):
        with torch.no_grad():
            other[0].weight.fill_(7.0)
        assert other[0].weight_quantizer.amax.unique().tolist() == [7]
        assert linear[0].weight_quantizer.amax.max() < 1


def test_gradients_reach_uncut_inputs_and_weights() -> None:
    conv = quant_nn.QuantConv2d(2, 3, 1, bias=False)
    conv.input_quantizer.amax = 1.0
    x = torch.tensor([-2.0, 0.5, 0.5, 2.0]).reshape(1, 1, 2, 2).repeat(1, 2, 1, 1).requires_grad_()
    conv(x).sum().backward()
    assert (x.grad[0, 0] != 0).flatten().tolist() == [False, True, True, False]
    assert conv.weight.grad.abs().min() > 0
