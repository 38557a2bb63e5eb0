"""Weights of fewer than 8 bits through export, verification, parity and engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.engines import BuildSpec, build_engine


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def narrow(images: np.ndarray) -> Any:
    """Return a calibrated network with weights of 4, 3 and 8 bits, whose norm turns signs."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(4, 3, use_bias=False, name="conv")(x)
    norm = keras.layers.BatchNormalization(name="norm")
    y = keras.layers.ReLU()(norm(y))
    y = keras.layers.DepthwiseConv2D(3, name="depthwise")(y)
    y = keras.layers.Conv2D(6, 1, name="point")(y)
    model = keras.Model(x, keras.layers.Dense(5, name="out")(keras.layers.Flatten()(y)))
    norm.gamma.assign([1.0, -0.5, 2.0, -1.0])
    spec = qat_lib.QuantizationSpec()
    spec.add(["conv", "point"], weight_num_bits=4).add("out", weight_num_bits=3)
    made = qat_lib.quantize_model(model, quantization_spec=spec, custom_qdq_cases="auto")
    qat_lib.calibrate(made, images)
    return made


def types(path: Path) -> list[str]:
    graph = onnx.load(path).graph
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    found = [stored[n.input[0]] for n in graph.node if n.input[0] in stored]
    return sorted(onnx.TensorProto.DataType.Name(each) for each in found)


@pytest.mark.matrix_except("tensorrt-int8-stored0", "onnxruntime-int4-stored4")
@pytest.mark.parametrize(
    ("target", "weights", "stored"),
    [
        ("tensorrt", "int8", ["INT8"] * 4),
        ("tensorrt", "qdq", ["FLOAT"] * 4),
        ("openvino", "int8", ["INT8"] * 4),
        ("openvino", "int4", ["INT4"] * 3 + ["INT8"]),
        ("onnxruntime", "int4", ["INT4"] * 3 + ["INT8"]),
    ],
)
def test_export_keeps_few_bit_weights(
    narrow: Any, images: np.ndarray, target: Any, weights: Any, stored: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "narrow.onnx"
    report = qat_lib.export_onnx(narrow, path, target=target, weights=weights)
    assert [finding for finding in report.findings if finding.severity != "info"] == []
    assert types(path) == stored
    parity = qat_lib.check_parity(narrow, path, images)
    assert parity.largest_difference <= 1e-6 * parity.magnitude


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_engine_takes_int4_weights(
    narrow: Any, images: np.ndarray, backend: Any, tmp_path: Path
) -> None:
    path = tmp_path / "narrow.onnx"
    qat_lib.export_onnx(narrow, path, target=backend, weights="int4")
    artifact = build_engine(path, BuildSpec(backend=backend))
    engine = qat_lib.engines.load_engine(artifact.path)
    found = next(iter(engine.infer(images).values()))
    expected = np.asarray(narrow(images))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_verification_finds_other_int4_weights(narrow: Any, tmp_path: Path) -> None:
    path = tmp_path / "narrow.onnx"
    qat_lib.export_onnx(narrow, path, target="onnxruntime", weights="int4")
    model = onnx.load(path)
    narrow_tensor = next(t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT4)
    narrow_tensor.raw_data = bytes(len(narrow_tensor.raw_data))
    onnx.save(model, path)
    assert "Q04" in {finding.rule for finding in qat_lib.verify_onnx(path)}
