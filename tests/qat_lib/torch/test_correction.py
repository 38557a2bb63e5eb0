"""correct_bias: mean errors leave with the biases, as in Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qat_lib
import qat_lib.torch
from qat_lib.errors import CalibrationError
from qat_lib.torch.models import load_weights, resnet20_cifar10

DATA = Path(__file__).parents[4] / "shared" / "data"
IMAGES = np.random.default_rng(0).uniform(0.2, 1.0, size=(64, 8, 8, 3)).astype(np.float32)
LAYERS = ("conv", "biased", "logits")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.biased = nn.Conv2d(16, 16, 3)
        self.logits = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.biased(torch.relu(self.bn(self.conv(x)))))
        x = torch.nn.functional.adaptive_avg_pool2d(x, 1)
        return self.logits(x.reshape(x.size(0), -1))


def channels_first(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))


def network() -> Network:
    torch.manual_seed(1)
    return Network().eval()


def quantized_at(bits: int, module: nn.Module, images: torch.Tensor) -> Any:
    spec = qat_lib.QuantizationSpec()
    for name in LAYERS:
        spec.add(name, num_bits=bits)
    quantized = qat_lib.torch.quantize_model(module, quantization_spec=spec)
    qat_lib.torch.calibrate(quantized, images, "max")
    return quantized.eval()


def keras_twin(module: Network) -> Any:
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


def test_correct_bias_removes_the_mean_error() -> None:
    module, images = network(), channels_first(IMAGES)
    quantized = quantized_at(4, module, images)
    with torch.no_grad():
        before = (quantized(images) - module(images)).mean(0).abs().max()
        report = qat_lib.torch.correct_bias(quantized, images)
        after = (quantized(images) - module(images)).mean(0).abs().max()
    assert after < 0.1 * before
    assert set(report.shifts) == set(LAYERS)
    assert (report.skipped, report.samples) == ({}, 64)
    assert all(shift > 0 for shift in report.shifts.values())


def test_correct_bias_moves_biases_and_means_only() -> None:
    quantized = quantized_at(4, network(), channels_first(IMAGES))
    before = {name: value.clone() for name, value in quantized.state_dict().items()}
    images = channels_first(IMAGES)
    qat_lib.torch.correct_bias(quantized.train(), images)
    after = quantized.state_dict()
    changed = {name for name in after if not after[name].equal(before[name])}
    assert changed == {"bn.running_mean", "biased.bias", "logits.bias"}
    assert quantized.training
    torch.testing.assert_close(images, channels_first(IMAGES), rtol=0, atol=0)


def test_correct_bias_equals_its_keras_twin() -> None:
    module = network()
    model = keras_twin(module)
    spec = qat_lib.QuantizationSpec()
    for name in LAYERS:
        spec.add(name, num_bits=4)
    twin = qat_lib.quantize_model(model, quantization_spec=spec)
    qat_lib.calibrate(twin, IMAGES, "max")
    qat_lib.correct_bias(twin, IMAGES)
    quantized = quantized_at(4, module, channels_first(IMAGES))
    qat_lib.torch.correct_bias(quantized, channels_first(IMAGES))
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
    x = channels_first(images)
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


@pytest.mark.skipif(not DATA.is_dir(), reason="no trained weights in ../shared/data")
def test_correct_bias_equals_keras_on_resnet20() -> None:
    pairs = resnet20_biases(activations=False)
    assert len(pairs) == 20
    for bias, expected in pairs:
        np.testing.assert_allclose(bias, expected, atol=1e-4)


@pytest.mark.skipif(not DATA.is_dir(), reason="no trained weights in ../shared/data")
def test_correct_bias_equals_keras_on_the_first_stage_of_int8() -> None:
    """Further on, values at the edge of a step round apart in the two frameworks.

    Each such value differs by a step, and later layers add up the differences.
    """
    for bias, expected in resnet20_biases(activations=True)[:6]:
        np.testing.assert_allclose(bias, expected, atol=1e-4)


def test_correct_bias_is_taken_back_where_outputs_get_worse() -> None:
    """As in Keras: a few clipped outliers outweigh the rounding errors."""
    conv = nn.Conv2d(1, 1, 1)
    nn.init.ones_(conv.weight)
    nn.init.zeros_(conv.bias)
    module = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1)).eval()
    spec = qat_lib.QuantizationSpec().add("0", num_bits=4)
    quantized = qat_lib.torch.quantize_model(module, "partial", spec)
    qat_lib.torch.calibrate(quantized, torch.ones(1, 1, 10, 10), "max")
    data = torch.full((8, 1, 10, 10), 0.25)
    data[:, :, :2, :2] = 10.0
    before = {name: value.clone() for name, value in quantized.state_dict().items()}
    report = qat_lib.torch.correct_bias(quantized, data)
    assert report.shifts == {}
    assert any("raises the error of the outputs" in reason for reason in report.skipped.values())
    for name, value in quantized.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_correct_bias_survives_export(tmp_path: Path) -> None:
    images = channels_first(IMAGES)
    quantized = quantized_at(8, network(), images)
    qat_lib.torch.correct_bias(quantized, images)
    path = tmp_path / "net.onnx"
    qat_lib.torch.export_onnx(quantized, path, example_input=images[:1])
    assert qat_lib.torch.check_parity(quantized, path, images[:8].numpy()).passed


def test_correct_bias_says_what_it_skips() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Conv2d(3, 3, 1)
            self.bare = nn.Conv2d(3, 4, 1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bare(self.shared(self.shared(x)))

    quantized = qat_lib.torch.quantize_model(Odd().eval())
    qat_lib.torch.calibrate(quantized, channels_first(IMAGES))
    report = qat_lib.torch.correct_bias(quantized, channels_first(IMAGES))
    assert report.shifts == {}
    assert "more than once" in report.skipped["shared"]
    assert "no bias" in report.skipped["bare"]


def test_correct_bias_refuses_a_float_model() -> None:
    with pytest.raises(CalibrationError, match="no quantizer"):
        qat_lib.torch.correct_bias(network(), channels_first(IMAGES))


def test_correct_bias_refuses_empty_data() -> None:
    quantized = quantized_at(8, network(), channels_first(IMAGES))
    with pytest.raises(CalibrationError, match="empty"):
        qat_lib.torch.correct_bias(quantized, [])
