"""correct_bias: mean errors leave with the biases, as in Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_framework import network, samples

import qat_lib
import qat_lib.torch
from qat_lib.torch.models import load_weights, resnet20_cifar10

DATA = Path(__file__).parents[4] / "shared" / "data"
IMAGES = np.random.default_rng(0).uniform(0.2, 1.0, size=(64, 8, 8, 3)).astype(np.float32)
LAYERS = ("conv", "biased", "logits")


def quantized_at(bits: int, module: nn.Module, images: torch.Tensor) -> Any:
    spec = qat_lib.QuantizationSpec()
    for name in LAYERS:
        spec.add(name, num_bits=bits)
    quantized = qat_lib.torch.quantize_model(module, quantization_spec=spec)
    qat_lib.torch.calibrate(quantized, images, "max")
    return quantized.eval()


def keras_twin(module: nn.Module) -> Any:
    import keras

    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(16, 3, use_bias=False, name="conv")(x)
    y = keras.layers.BatchNormalization(epsilon=module.bn.eps, name="bn")(y)
    y = keras.layers.ReLU()(y)
    y = keras.layers.ReLU()(keras.layers.Conv2D(16, 3, name="biased")(y))
    y = keras.layers.GlobalAveragePooling2D()(y)
    model = keras.Model(x, keras.layers.Dense(4, name="logits")(y))
    for name in LAYERS:
        layer = getattr(module, name)
        kernel = layer.weight.detach().numpy()
        kernel = kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
        bias = [] if layer.bias is None else [layer.bias.detach().numpy()]
        model.get_layer(name).set_weights([kernel, *bias])
    return model


def test_correct_bias_equals_its_keras_twin() -> None:
    module = network()
    model = keras_twin(module)
    spec = qat_lib.QuantizationSpec()
    for name in LAYERS:
        spec.add(name, num_bits=4)
    twin = qat_lib.quantize_model(model, quantization_spec=spec)
    qat_lib.calibrate(twin, IMAGES, "max")
    qat_lib.correct_bias(twin, IMAGES)
    quantized = quantized_at(4, module, samples(IMAGES)).train()
    qat_lib.torch.correct_bias(quantized, samples(IMAGES))
    assert quantized.training
    own = quantized.state_dict()
    expected = {
        "bn.running_mean": twin.get_layer("bn").moving_mean,
        "biased.bias": twin.get_layer("quant_biased").layer.bias,
        "logits.bias": twin.get_layer("quant_logits").layer.bias,
    }
    for name, bias in expected.items():
        np.testing.assert_allclose(own[name], bias.numpy(), atol=1e-4, err_msg=name)


def resnet20_biases(*, activations: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each layer's corrected bias or mean in PyTorch and in Keras."""
    from qat_lib.models import resnet20_cifar10 as keras_resnet20
    from qat_lib.models.weights import load_weights as load_keras_weights

    with np.load(DATA / "cifar10_jpeg_subset.npz") as data:
        images = data["x_train"][:32] / np.float32(255)
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    images = ((images - mean) / std).astype(np.float32)
    model, module = keras_resnet20(), resnet20_cifar10()
    load_keras_weights(model, DATA / "resnet20_cifar10.npz")
    load_weights(module, DATA / "resnet20_cifar10.npz")
    twin = qat_lib.quantize_model(model, custom_qdq_cases="auto")
    qat_lib.calibrate(twin, images, "max")
    x = samples(images)
    quantized = qat_lib.torch.quantize_model(
        module.eval(), custom_qdq_cases="auto", example_input=x
    )
    qat_lib.torch.calibrate(quantized, x, "max")
    owners = [qat_lib.model_quantizers(twin), qat_lib.torch.model_quantizers(quantized)]
    for quantizer in (*owners[0].values(), *owners[1].values()):
        if not activations and not quantizer.of_weight:
            quantizer.disable()
    qat_lib.correct_bias(twin, images)
    qat_lib.torch.correct_bias(quantized, x)
    expected = {v.path: v.numpy() for v in twin.variables if v.name in ("moving_mean", "bias")}
    pairs = []
    for name, value in quantized.state_dict().items():
        if name == "linear.bias" or name.endswith("running_mean"):
            pairs.append((value.numpy(), expected[_keras_path(name)]))
    return pairs


def _keras_path(name: str) -> str:
    """Return the Keras path of a bias or mean of ResNet-20."""
    layer = name.rpartition(".")[0]
    if layer == "linear":
        return "linear/bias"
    block, _, norm = layer.rpartition(".")
    return f"{block.replace('.', '_')}_{norm[2:]}_bn/moving_mean" if block else "bn1/moving_mean"


@pytest.mark.matrix
@pytest.mark.skipif(not DATA.is_dir(), reason="no trained weights in ../shared/data")
def test_correct_bias_equals_keras_on_resnet20() -> None:
    pairs = resnet20_biases(activations=False)
    assert len(pairs) == 20
    for bias, expected in pairs:
        np.testing.assert_allclose(bias, expected, atol=1e-4)


@pytest.mark.matrix
@pytest.mark.skipif(not DATA.is_dir(), reason="no trained weights in ../shared/data")
def test_correct_bias_equals_keras_on_the_first_stage_of_int8() -> None:
    """Further on, values at the edge of a step round apart in the two frameworks.

    Each such value differs by a step, and later layers add up the differences.
    """
    for bias, expected in resnet20_biases(activations=True)[:6]:
        np.testing.assert_allclose(bias, expected, atol=1e-4)
