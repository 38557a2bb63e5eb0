"""QuantDescriptor and the two functions, with the published names, defaults and figures."""

from typing import Any

import numpy as np
import pytest
import torch

from qat_lib.errors import SpecError
from qat_lib.torch import tensor_quant
from qat_lib.torch.tensor_quant import (
    QuantDescriptor,
    fake_affine_tensor_quant,
    fake_tensor_quant,
    legacy_fake_tensor_quant,
    scaled_e4m3,
)


def published_input() -> torch.Tensor:
    torch.manual_seed(12345)
    return torch.rand(10)


def test_fake_tensor_quant_gives_the_published_figures() -> None:
    x = published_input()
    expected = [0.9843, 0.8828, 0.9921, 0.4609, 0.0859, 0.1797, 0.3672, 0.5703, 0.3359, 0.2109]
    found = fake_tensor_quant(x, x.abs().max())
    np.testing.assert_allclose(found.numpy(), expected, atol=5e-5)


def test_tensor_quant_gives_the_published_figures() -> None:
    x = published_input()
    integers, scale = tensor_quant.tensor_quant(x, x.abs().max())
    assert integers.tolist() == [126, 113, 127, 59, 11, 23, 47, 73, 43, 27]
    assert scale.item() == pytest.approx(128.0057, abs=5e-5)


def test_tensor_quant_is_narrow_by_default() -> None:
    x = torch.tensor([-9.0, 9.0])
    assert tensor_quant.tensor_quant(x, 1.0)[0].tolist() == [-127, 127]
    assert tensor_quant.tensor_quant(x, 1.0, narrow_range=False)[0].tolist() == [-128, 127]
    assert tensor_quant.tensor_quant(x, 1.0, 8, True)[0].tolist() == [0, 255]
    assert fake_tensor_quant(x, 7.0, 4).tolist() == [-7, 7]
    assert fake_tensor_quant(x, 7.0, 4, False, False).tolist() == [-8, 7]


@pytest.mark.parametrize("function", ["fake_tensor_quant", "tensor_quant"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 1, 1, 0]),
        ({"narrow_range": False}, [0, 1, 1, 1, 0]),
        ({"unsigned": True}, [0, 0, 1, 1, 0]),
    ],
)
def test_gradients_are_straight_through_with_clip_mask(
    function: str, options: dict[str, Any], expected: list[float]
) -> None:
    x = torch.tensor([-1.5, -1.0, 0.0, 1.0, 1.5], requires_grad=True)
    found = getattr(tensor_quant, function)(x, torch.tensor(1.0), **options)
    (found if function == "fake_tensor_quant" else found[0]).sum().backward()
    assert x.grad.tolist() == expected


def test_quant_descriptor_has_the_published_defaults() -> None:
    found = QuantDescriptor()
    assert (found.num_bits, found.name, found.fake_quant, found.axis) == (8, None, True, None)
    assert (found.amax, found.learn_amax, found.scale_amax) == (None, False, None)
    assert (found.calib_method, found.unsigned, found.narrow_range) == ("max", False, False)
    assert (found.range_policy, found.calibrator, found.momentum) == ("frozen", None, 0.95)


def test_predefined_descriptors_keep_axes_of_output_channels() -> None:
    assert QuantDescriptor() == tensor_quant.QUANT_DESC_8BIT_PER_TENSOR
    assert tensor_quant.QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR.unsigned
    assert tensor_quant.QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW.axis == 0
    for rank in "123":
        name = f"QUANT_DESC_8BIT_CONV{rank}D_WEIGHT_PER_CHANNEL"
        assert getattr(tensor_quant, name) == QuantDescriptor(axis=0, narrow_range=True)
        name = f"QUANT_DESC_8BIT_CONVTRANSPOSE{rank}D_WEIGHT_PER_CHANNEL"
        assert getattr(tensor_quant, name) == QuantDescriptor(axis=1, narrow_range=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_bits": 4, "axis": 0},
        {"num_bits": (4, 3)},
        {"num_bits": 8, "axis": (0, 2), "unsigned": True, "name": "q"},
        {"amax": [1.0, 2.5], "axis": 1, "scale_amax": 0.5, "calib_method": "histogram"},
        {"learn_amax": True, "amax": 3.0, "fake_quant": False},
        {"range_policy": "ema", "momentum": 0.5, "calibrator": "mse", "narrow_range": True},
    ],
)
def test_quant_descriptor_round_trips_as_yaml(options: dict[str, Any]) -> None:
    descriptor = QuantDescriptor(**options)
    read = QuantDescriptor.from_yaml(descriptor.to_yaml())
    assert read == descriptor
    assert hash(read) == hash(descriptor)
    assert read != QuantDescriptor(num_bits=3)


def test_quant_descriptor_takes_learned_from_either_side() -> None:
    assert QuantDescriptor(learn_amax=True).range_policy == "learned"
    assert QuantDescriptor(range_policy="learned").learn_amax
    with pytest.raises(SpecError, match=r"means the range policy 'learned'\. Received: 'ema'"):
        QuantDescriptor(learn_amax=True, range_policy="ema")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_bits": 1}, "num_bits must be an integer from 2 to 16"),
        ({"num_bits": (4, 3), "unsigned": True}, "FP8 is signed.*unsigned=True"),
        ({"num_bits": (4, 3), "fake_quant": False}, "FP8 is signed.*fake_quant=False"),
        ({"num_bits": (4, 3), "learn_amax": True}, "FP8 is signed.*'learned'"),
        ({"unsigned": True, "narrow_range": True}, "unsigned integers have no narrow range"),
        ({"calib_method": "mse"}, "calib_method must be one of max, histogram"),
        ({"calibrator": "histogram"}, "calibrator must be one of max, percentile"),
        ({"range_policy": "fixed"}, "range_policy must be one of"),
        ({"momentum": 1.0}, "momentum must be in"),
    ],
)
def test_quant_descriptor_refuses_bad_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        QuantDescriptor(**options)


def test_quant_descriptor_refuses_bad_types() -> None:
    for width in ((5, 2), (4, 3, 0)):
        with pytest.raises(TypeError, match=r"num_bits must be an integer or \(4, 3\)"):
            QuantDescriptor(num_bits=width)
    with pytest.raises(TypeError, match=r"amax must be float, list or ndarray\. Received: 'oops'"):
        QuantDescriptor(amax="oops")
    with pytest.raises(TypeError, match="name must be a string or None"):
        QuantDescriptor(name=3)
    for axis in ("0", 1.0, (0, None)):
        with pytest.raises(TypeError, match="axis must be an integer or a tuple of them"):
            QuantDescriptor(axis=axis)
    with pytest.raises(TypeError, match="axes"):
        QuantDescriptor(axes=0)


def test_fake_affine_tensor_quant_keeps_zero_and_bounds() -> None:
    x = torch.tensor([-1.0, -13.0, -128.0, 0.0, 2.0, 111.0, 127.0])
    torch.testing.assert_close(fake_affine_tensor_quant(x, x.min(), x.max()), x)
    found = fake_affine_tensor_quant(torch.tensor([-9.0, 0.0, 0.1, 1.4, 9.0]), -1.0, 2.0, 2)
    assert found.tolist() == pytest.approx([-1, 0, 0, 1, 2])


def test_fake_affine_gradient_is_clip_mask() -> None:
    x = torch.linspace(-2, 2, 21, requires_grad=True)
    fake_affine_tensor_quant(x, -0.5, 1.0, 4).sum().backward()
    assert x.grad is not None
    assert x.grad.bool().tolist() == ((x >= -0.5) & (x <= 1.0)).tolist()


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (1.0, -1.0), (0.0, float("inf"))])
def test_fake_affine_refuses_bad_bounds(bounds: tuple[float, float]) -> None:
    with pytest.raises(SpecError, match="min_range below max_range"):
        fake_affine_tensor_quant(torch.ones(1), *bounds)


def test_legacy_fake_tensor_quant_is_the_same() -> None:
    x = torch.linspace(-2, 2, 33)
    expected = fake_tensor_quant(x, 1.0, 4)
    torch.testing.assert_close(legacy_fake_tensor_quant(x, 1.0, 4), expected, rtol=0, atol=0)


def test_tensor_quant_names_scale_beyond_fp16() -> None:
    x = torch.ones(3).half()
    with pytest.raises(SpecError, match=r"scale is too large for FP16.*0\.001939"):
        tensor_quant.tensor_quant(x, 1e-4)
    assert tensor_quant.tensor_quant(x, 0.01)[1].dtype == torch.float16
    assert torch.isfinite(fake_tensor_quant(x, 1e-4)).all()


def test_scaled_e4m3_is_fp8_alone() -> None:
    x = torch.tensor([-1.8, 0.2, 0.4, 500.0])
    assert scaled_e4m3(x).tolist() == [-1.75, 0.203125, 0.40625, 448.0]
    with pytest.raises(NotImplementedError, match="Received: E=5, M=2"):
        scaled_e4m3(x, None, 5, 2)
