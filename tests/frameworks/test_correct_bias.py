"""``correct_bias``: mean errors leave with the biases."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib import QuantizationSpec
from qat_lib.errors import CalibrationError

IMAGES = np.random.default_rng(0).uniform(0.2, 1.0, size=(64, 8, 8, 3)).astype(np.float32)
LAYERS = ("conv", "biased", "logits")


def quantized_at(bits: int, framework: Any, model: Any) -> Any:
    spec = QuantizationSpec()
    for name in LAYERS:
        spec.add(name, num_bits=bits)
    quantized = framework.api.quantize_model(model, quantization_spec=spec)
    framework.api.calibrate(quantized, framework.samples(IMAGES), "max")
    return quantized


def test_correct_bias_removes_the_mean_error(framework: Any) -> None:
    model, images = framework.network(), framework.samples(IMAGES)
    quantized, expected = quantized_at(4, framework, model), framework.predict(model, images)
    before = np.abs((framework.predict(quantized, images) - expected).mean(0))
    report = framework.api.correct_bias(quantized, images)
    after = np.abs((framework.predict(quantized, images) - expected).mean(0))
    assert after.max() < 0.1 * before.max()
    assert set(report.shifts) == {framework.quantized_name(name) for name in LAYERS}
    assert (report.skipped, report.samples) == ({}, 64)
    assert all(shift > 0 for shift in report.shifts.values())


def test_correct_bias_moves_biases_and_means_only(framework: Any) -> None:
    quantized, images = quantized_at(4, framework, framework.network()), framework.samples(IMAGES)
    before = framework.state(quantized)
    framework.api.correct_bias(quantized, images)
    after = framework.state(quantized)
    changed = [name for name in after if np.any(after[name] != before[name])]
    assert sorted(map(framework.kind, changed)) == ["bias", "bias", "mean"]
    np.testing.assert_array_equal(images, framework.samples(IMAGES))


def test_correct_bias_is_taken_back_where_outputs_get_worse(framework: Any) -> None:
    """A few clipped outliers outweigh the rounding errors that the trimmed mean shows."""
    spec = QuantizationSpec().add("conv", num_bits=4)
    quantized = framework.api.quantize_model(framework.pooled_identity(), "partial", spec)
    ones = np.ones((1, 10, 10, 1), np.float32)
    framework.api.calibrate(quantized, framework.samples(ones), "max")
    data = np.full((8, 10, 10, 1), 0.25, np.float32)
    data[:, :2, :2] = 10.0
    before = framework.state(quantized)
    report = framework.api.correct_bias(quantized, framework.samples(data))
    assert report.shifts == {}
    reason = report.skipped[framework.quantized_name("conv")]
    assert "raises the error of the outputs" in reason
    for name, value in framework.state(quantized).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.matrix
def test_correct_bias_survives_export(framework: Any, tmp_path: Path) -> None:
    images = framework.samples(IMAGES)
    quantized, path = quantized_at(8, framework, framework.network()), tmp_path / "net.onnx"
    framework.api.correct_bias(quantized, images)
    framework.export(quantized, path, images[:1])
    assert framework.api.check_parity(quantized, path, np.asarray(images[:8])).passed


def test_correct_bias_says_what_it_skips(framework: Any) -> None:
    images = framework.samples(IMAGES)
    quantized = framework.api.quantize_model(framework.odd_convolutions())
    framework.api.calibrate(quantized, images)
    report = framework.api.correct_bias(quantized, images)
    assert report.shifts == {}
    assert "more than once" in report.skipped[framework.quantized_name("shared")]
    assert "no bias" in report.skipped[framework.quantized_name("bare")]


def test_correct_bias_refuses_a_float_model(framework: Any) -> None:
    with pytest.raises(CalibrationError, match="no quantizer"):
        framework.api.correct_bias(framework.network(), framework.samples(IMAGES))


def test_correct_bias_refuses_empty_data(framework: Any) -> None:
    quantized = quantized_at(8, framework, framework.network())
    with pytest.raises(CalibrationError, match="empty"):
        framework.api.correct_bias(quantized, [])
