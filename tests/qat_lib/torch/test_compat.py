"""Functions of pytorch-quantization: values, gradients, and the paths to import them from."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from qat_lib.errors import SpecError
from qat_lib.torch.compat import Clip, clip, reduce_amax

X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("axis", [(0,), (1, 3), (0, 2, 3), [0, 1], (-1,), 2, (), (0, 1, 2, 3)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reduce_amax_equals_numpy(axis: int | tuple[int, ...], keepdims: bool) -> None:
    axes = axis if isinstance(axis, int) else tuple(axis)
    expected = np.max(np.abs(X.numpy()), axis=axes, keepdims=keepdims)
    found = reduce_amax(X, axis=axis, keepdims=keepdims)
    if expected.size == 1:
        expected = expected.reshape(())
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found.shape == expected.shape


def test_reduce_amax_gives_scalar_without_gradient() -> None:
    found = reduce_amax(X.clone().requires_grad_())
    assert found.shape == ()
    assert found == X.abs().max()
    assert not found.requires_grad
    with pytest.raises(SpecError, match="more axes than the tensor's 1"):
        reduce_amax(torch.ones(3), axis=(0, 1))


def test_clip_equals_numpy_and_broadcasts() -> None:
    low, high = -torch.rand(1, 3, 1, 1), torch.rand(1, 3, 1, 1)
    expected = np.clip(X.numpy(), low.numpy(), high.numpy())
    np.testing.assert_array_equal(clip(X, low, high).numpy(), expected)
    np.testing.assert_array_equal(clip(X, -0.5, 0.25).numpy(), np.clip(X.numpy(), -0.5, 0.25))


def test_clip_trains_bounds_by_elements_beyond() -> None:
    x = torch.tensor([-2.0, -1.0, 0.5, 1.0, 3.0, 4.0], requires_grad=True)
    layer = Clip(-1.0, 1.0, learn_min=True, learn_max=True)
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    (layer(x) * weights).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 4, 0, 0, 0]
    assert [p.grad.item() for p in layer.parameters() if p.grad is not None] == [3, 56]
    assert not list(Clip(-1.0, 1.0).parameters())


def test_trained_bounds_must_be_scalar() -> None:
    with pytest.raises(SpecError, match=r"must be scalar\. Received: \(2,\)"):
        Clip(torch.zeros(2), 1.0, learn_min=True)
    bound = torch.zeros(3, requires_grad=True)
    with pytest.raises(SpecError, match=r"can only be scalar\. Received: \(3,\)"):
        clip(torch.ones(3), -1.0, bound).sum().backward()


def test_names_have_the_published_paths() -> None:
    for path, names in {
        "": ["enable_onnx_export"],
        ".calib": ["MaxCalibrator", "HistogramCalibrator", "calibrate_weights"],
        ".nn": ["Clip", "TensorQuantizer", "QuantConv2d", "Conv2d", "Linear", "LSTM"],
        ".nn.functional": ["clip"],
        ".nn.modules.clip": ["Clip"],
        ".nn.modules.quant_conv": ["Conv1d", "Conv2d", "ConvTranspose3d", "QuantConv1d"],
        ".nn.modules.quant_instancenorm": ["InstanceNorm2d"],
        ".nn.modules.quant_linear": ["Linear"],
        ".nn.modules.quant_pooling": ["MaxPool1d", "AdaptiveAvgPool3d"],
        ".nn.modules.quant_rnn": ["LSTM", "LSTMCell"],
        ".nn.modules.tensor_quantizer": ["TensorQuantizer"],
        ".quant_modules": ["QuantModuleReplacementHelper", "enable_onnx_export"],
        ".tensor_quant": ["legacy_fake_tensor_quant", "fake_affine_tensor_quant", "scaled_e4m3"],
        ".utils": ["reduce_amax"],
    }.items():
        module = importlib.import_module(f"qat_lib.torch{path}")
        for name in names:
            assert callable(getattr(module, name)), f"{path}.{name}"
