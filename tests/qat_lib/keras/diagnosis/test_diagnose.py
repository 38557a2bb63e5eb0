"""Planted faults are found, named first, and mended by the change that is printed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from planted_faults import images, network, quantized, scale_channel

import qat_lib
from qat_lib.errors import CalibrationError, ConfigError
from qat_lib.files.state_file import read_state
from qat_lib.keras.diagnosis import diagnose as diagnose_module
from qat_lib.keras.diagnosis.effects import Switchboard
from qat_lib.keras.diagnosis.report import Diagnosis

SHARED = Path(os.environ.get("QATLINE_SHARED_DATA", Path(__file__).parents[5] / "shared" / "data"))
PAIRS = [("conv1", "conv2"), ("conv2", "depth"), ("depth", "conv3")]


def diagnosed(model: Any, **options: Any) -> Diagnosis:
    return qat_lib.diagnose(model, images(), samples=16, **options)


def test_a_network_without_fault_has_none_named() -> None:
    found = diagnosed(network())
    assert [each for each in found.findings if not each.minor] == []
    assert {row.layer for row in found.layers} >= {"conv1", "conv2", "depth", "conv3", "logits"}
    assert "Quantization costs nothing measurable" in str(found)


@pytest.mark.matrix_except("0-conv1-conv2", "1-depth-conv3")
@pytest.mark.parametrize(("layer", "reader"), PAIRS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_channel_scaled_100_times_is_named_first(layer: str, reader: str, seed: int) -> None:
    model = network(seed)
    scale_channel(model, layer, reader, 3, 100.0)
    found = diagnosed(model)
    first = found.findings[0]
    assert (first.cause, first.layer, first.channels) == ("outlier channel", layer, (3,))
    assert [entry.name for entry in first.change] == [reader]
    assert first.only > 10 * first.without or first.only > 0.3 * found.total
    assert found.layers[0].layer == reader


@pytest.mark.matrix
def test_the_change_mends_the_planted_fault() -> None:
    model = network()
    scale_channel(model, "conv2", "depth", 3, 100.0)
    before = diagnosed(model)
    mended = quantized(model, before.spec())
    after = diagnosed(mended)
    assert after.total < before.total / 50


@pytest.mark.parametrize("part", [0.05, 0.1, 0.3])
def test_a_clipped_range_is_named_first(part: float) -> None:
    model = quantized(network(), method="max")
    quantizer = qat_lib.model_quantizers(model)["relu2_quantizer"]
    quantizer.amax = quantizer.amax * part
    first = diagnosed(model).findings[0]
    assert (first.cause, first.layer) == ("clipped range", "conv2")
    (entry,) = first.change
    assert entry.name == "depth"
    assert entry.calibrator in ("mse", "max")


@pytest.mark.parametrize("factor", [1e-3, 1e-4])
def test_a_channel_that_rounds_to_zero_is_named(factor: float) -> None:
    model = network()
    scale_channel(model, "conv1", "conv2", 5, factor)
    causes = {(each.cause, each.layer, each.channels) for each in diagnosed(model).findings}
    assert ("dead channel", "conv1", (5,)) in causes
    assert ("outlier channel", "conv2", (5,)) in causes  # its weights make up for it


def test_a_channel_that_is_zero_everywhere_is_a_minor_finding() -> None:
    model = network()
    scale_channel(model, "conv2", None, 6, 0.0)
    found = [each for each in diagnosed(model).findings if each.cause == "dead channel"]
    assert ("conv2", (6,), True) in [(each.layer, each.channels, each.minor) for each in found]
    assert all(not each.change for each in found)


@pytest.mark.parametrize("factor", [100.0, 1000.0])
def test_depthwise_weights_in_one_range_are_named(factor: float) -> None:
    model = network()
    scale_channel(model, "depth", "conv3", 2, factor)
    changed = quantized(model, qat_lib.QuantizationSpec().add("depth", per_channel=False))
    found = [each for each in diagnosed(changed).findings if each.tensor == "depth/kernel"]
    assert [each.cause for each in found] == ["depthwise weight spread"]
    assert found[0].change[0].to_dict() == {"name": "depth", "per_channel": True}


def test_weights_in_one_range_get_one_for_each_channel() -> None:
    model = network()
    scale_channel(model, "conv3", None, 2, 100.0)
    changed = quantized(model, qat_lib.QuantizationSpec().add("conv3", per_channel=False))
    found = [each for each in diagnosed(changed).findings if each.tensor == "conv3/kernel"]
    assert [(each.cause, each.channels) for each in found] == [("outlier channel", (2,))]


def test_a_tensor_that_no_range_fits_is_named_first() -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="image")
    y = layers.Lambda(lambda t: keras.ops.exp(3 * t), name="exp")(x)
    y = layers.Conv2D(8, 1, name="conv")(y)
    y = layers.Lambda(lambda t: keras.ops.log(1e-6 + keras.ops.abs(t)), name="log")(y)
    model = keras.Model(x, layers.Dense(5, name="logits")(layers.Flatten()(y)))
    first = diagnosed(model).findings[0]
    assert (first.cause, first.layer) == ("unquantizable pattern", "exp")
    assert first.change[0].to_dict() == {
        "name": "conv",
        "quantize_input": False,
        "quantize_weight": False,
    }


@pytest.mark.matrix
def test_few_bits_are_named_with_more_of_them() -> None:
    spec = qat_lib.QuantizationSpec().add("conv2", num_bits=3)
    first = diagnosed(quantized(network(), spec)).findings[0]
    assert first.cause == "unquantizable pattern"
    assert first.change[0].to_dict() == {"name": "conv2", "num_bits": 8}


@pytest.mark.matrix
def test_layers_measures_those_with_the_most_noise() -> None:
    model = network()
    scale_channel(model, "conv1", "conv2", 3, 100.0)
    found = diagnosed(model, layers=2)
    assert len(found.layers) == 2
    assert found.findings[0].layer == "conv1"
    assert len(found.tensors) == len(diagnosed(model).tensors)


def test_outputs_that_are_no_classes_have_a_relative_error() -> None:
    x = keras.Input((8, 8, 3), name="image")
    model = keras.Model(x, layers.Conv2D(2, 3, name="conv")(x))
    found = diagnosed(model)
    assert found.measure == "error"
    assert 1e-3 < found.total < 0.1
    with pytest.raises(ConfigError, match="take 'error'"):
        diagnosed(model, measure="kl")


def test_a_model_stays_as_it_was() -> None:
    model = quantized(network())
    before = [weight.numpy() for weight in model.weights]
    diagnosed(model)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


@pytest.mark.matrix
def test_an_interrupted_diagnosis_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, journal = quantized(network()), tmp_path / "j"
    whole = diagnosed(model)
    runs: list[int] = []
    interrupted: list[bool] = []
    outputs = Switchboard.outputs

    def counted(self: Switchboard, on: Any) -> Any:
        runs.append(len(on))
        if len(runs) == 6 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return outputs(self, on)

    monkeypatch.setattr(Switchboard, "outputs", counted)
    with pytest.raises(KeyboardInterrupt):
        diagnosed(model, journal=journal)
    assert len(read_state(journal)["results"]) == 4
    again = diagnosed(model, journal=journal)
    assert again.to_dict() == whole.to_dict()
    first = len(runs)
    runs.clear()
    diagnosed(model)
    assert first - 6 == len(runs) - 4
    assert not journal.exists()


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[str, int, int]] = []
    diagnosed(network(), on_progress=lambda *step: seen.append(step))
    assert seen[0] == ("errors of tensors", 0, 1)
    assert seen[-1][1] == seen[-1][2] == 6


def test_what_nothing_can_quantize_is_listed() -> None:
    class Own(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 4), name="kernel")

        def call(self, x: Any) -> Any:
            return keras.ops.matmul(x, self.kernel)

    x = keras.Input((8, 8, 3), name="image")
    y = Own(name="own")(layers.Conv2D(4, 3, name="conv")(x))
    found = diagnosed(keras.Model(x, y))
    assert [(each.layer, each.reason) for each in found.skipped] == [("own", "not quantizable")]
    assert "In float: own (Own)" in str(found)


def test_a_model_with_every_quantizer_off_is_refused() -> None:
    model = quantized(network())
    for quantizer in qat_lib.model_quantizers(model).values():
        quantizer.disable()
    with pytest.raises(CalibrationError, match="has none: call enable"):
        diagnosed(model)


@pytest.mark.matrix_except("layer2_1")
@pytest.mark.skipif(
    not (SHARED / "resnet20_cifar10.npz").is_file(), reason=f"needs the weights in {SHARED}"
)
@pytest.mark.parametrize("prefix", ["layer1_0", "layer2_1", "layer3_2"])
def test_a_planted_channel_of_a_trained_network_is_named_first(prefix: str) -> None:
    from qat_lib.models import resnet20_cifar10
    from qat_lib.models.weights import load_weights

    model = resnet20_cifar10()
    load_weights(model, SHARED / "resnet20_cifar10.npz")
    norm = model.get_layer(f"{prefix}_1_bn")
    gamma, beta, mean, variance = norm.get_weights()
    gamma[5] *= 100
    beta[5] *= 100
    norm.set_weights([gamma, beta, mean, variance])
    reader = model.get_layer(f"{prefix}_2_conv")
    reader.set_weights([weight / _hundredth(weight) for weight in reader.get_weights()])
    with np.load(SHARED / "cifar10_jpeg_subset.npz") as data:
        x = data["x_train"][:64].astype(np.float32) / 255
    x = (x - (0.485, 0.456, 0.406)) / np.array((0.229, 0.224, 0.225), np.float32)
    found = qat_lib.diagnose(model, x.astype(np.float32), samples=16, layers=6)
    first = found.findings[0]
    assert (first.layer, first.cause, first.channels) == (
        f"{prefix}_1_conv",
        "outlier channel",
        (5,),
    )
    assert [entry.name for entry in first.change] == [f"{prefix}_2_conv"]


def _hundredth(kernel: np.ndarray) -> np.ndarray:
    divisor = np.ones_like(kernel)
    divisor[:, :, 5, :] = 100
    return divisor


def test_diagnose_is_the_function_of_the_package() -> None:
    assert diagnose_module is qat_lib.diagnose


def test_a_model_with_named_inputs_takes_them_by_name() -> None:
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 3), name="b")
    y = layers.Conv2D(4, 3, name="conv_a")(a) + layers.Conv2D(4, 3, name="conv_b")(b)
    model = keras.Model({"b": b, "a": a}, layers.GlobalAveragePooling2D(name="pool")(y))
    data = {"a": images(), "b": 50 * images()}
    found = qat_lib.diagnose(model, data, samples=16, batch_size=5)
    assert found.samples == 16
    peaks = {each.tensor: each for each in found.tensors}
    assert {"a:0", "b:0", "conv_a/kernel"} <= set(peaks)
