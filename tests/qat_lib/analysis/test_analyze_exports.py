"""Predictions on files that the exporter wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qat_lib
from qat_lib.analysis import FusionReport, analyze_onnx


def analyzed(model: Any, folder: Path, **options: Any) -> FusionReport:
    """Quantize, calibrate on noise (distinct ranges), export and analyze."""
    quantized = qat_lib.quantize_model(model, **options)
    noise = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:])).astype("float32")
    qat_lib.calibrate(quantized, noise, method="max", batch_size=2)
    return analyze_onnx(qat_lib.export_onnx(quantized, folder / "model.onnx").path)


def residual_network() -> Any:
    import keras

    x = inputs = keras.Input((16, 16, 16), name="image")

    def conv(x: Any, name: str) -> Any:
        x = keras.layers.Conv2D(16, 3, padding="same", use_bias=False, name=f"{name}_conv")(x)
        return keras.layers.BatchNormalization(name=f"{name}_bn")(x)

    for block in ("a", "b"):
        y = keras.layers.ReLU(name=f"{block}_relu1")(conv(x, f"{block}1"))
        y = conv(y, f"{block}2")
        x = keras.layers.ReLU(name=f"{block}_out")(keras.layers.Add(name=f"{block}_add")([x, y]))
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, keras.layers.Dense(16, name="head")(x))


def all_adds() -> Any:
    spec = qat_lib.QuantizationSpec()
    spec.add(name="Add", is_keras_class=True)
    return spec


@pytest.mark.parametrize(
    ("placement", "rule", "code"),
    [("default", "F2", "V15"), ("all Add inputs", "F4", "V17"), ("residual", "F1", None)],
)
def test_the_tutorials_placements(
    tmp_path: Path, placement: str, rule: str, code: str | None
) -> None:
    options: dict[str, Any] = {
        "default": {},
        "all Add inputs": {"quantization_spec": all_adds()},
        "residual": {"custom_qdq_cases": [qat_lib.ResidualConnectionQDQCase()]},
    }[placement]
    report = analyzed(residual_network(), tmp_path, **options)
    assert (report.int8_layers, len(report.layers)) == (5, 5)
    assert [(add.keras_layer, add.rule) for add in report.adds] == [
        ("a_add", rule),
        ("b_add", rule),
    ]
    warnings = {finding.code for finding in report.findings if finding.severity != "info"}
    assert warnings == ({code} if code else set())
    assert {finding.keras_layer for finding in report.findings if finding.code == code} == (
        {"a_add", "b_add"} if code else set()
    )


@pytest.mark.slow
def test_resnet50_of_keras_gives_the_published_engine(tmp_path: Path) -> None:
    import keras

    model = keras.applications.ResNet50(weights=None)
    report = analyzed(model, tmp_path, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    fused = {add.fused_into for add in report.adds if add.precision == "int8"}
    convolutions = {
        layer.name
        for layer in report.layers
        if layer.op_type == "Conv" and layer.precision == "int8"
    }
    assert (len(convolutions - fused), len(fused)) == (37, 16)
    assert [pool.precision for pool in report.pools] == ["int8", "int8"]
    assert [layer.precision for layer in report.layers if layer.op_type != "Conv"] == ["int8"]
    assert {kernel.detail for kernel in report.kernels} <= {"quantize", "transpose"}
    assert sum(kernel.detail == "quantize" for kernel in report.kernels) == 1
    assert {finding.severity for finding in report.findings} == {"info"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder",
    [
        "MobileNetV2",
        "MobileNetV3Small",
        "EfficientNetB0",
        "DenseNet121",
        "InceptionV3",
        "ResNet50V2",
        "Xception",
    ],
)
def test_networks_of_keras_have_no_findings_to_act_on(tmp_path: Path, builder: str) -> None:
    import keras

    model = getattr(keras.applications, builder)(weights=None, input_shape=(96, 96, 3))
    report = analyzed(model, tmp_path, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    assert report.int8_layers == len(report.layers)
    assert [str(finding) for finding in report.findings if finding.severity != "info"] == []
