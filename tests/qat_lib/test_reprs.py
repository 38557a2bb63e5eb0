"""Short one-line reprs of the library's objects."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import qat_lib


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("reprs")
    images = keras.Input((8, 8, 3), name="images")
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, name="conv")(images))
    model = keras.Model(images, keras.layers.Dense(2, name="logits")(features), name="small")
    quantized = qat_lib.quantize_model(model)
    data = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype("float32")
    calibration = qat_lib.calibrate(quantized, data)
    path = folder / "model.onnx"
    qat_lib.export_onnx(quantized, path)
    artifact = qat_lib.build_engine(path, qat_lib.BuildSpec(backend="onnxruntime"), verify=False)
    engine = qat_lib.load_engine(artifact.path)
    engine.close()
    graph = qat_lib.LayerGraph(model)
    return {
        "plan": qat_lib.plan_quantization(model),
        "graph": graph,
        "call": graph.calls[1],
        "calibration": calibration,
        "fusion": qat_lib.analyze_onnx(path),
        "artifact": artifact,
        "manifest": artifact.manifest,
        "engine": engine,
        "quantizer": qat_lib.model_quantizers(quantized)["images_quantizer"],
    }


EXPECTED = {
    "plan": "<QuantizationPlan of 'small', full mode: 5 quantizers, 0 skipped layers>",
    "graph": "<LayerGraph of 'small': 4 calls>",
    "calibration": "<CalibrationReport: 3 tensors, 16 samples>",
    "engine": "<OnnxRuntimeEngine: images -> logits>",
    "quantizer": "<TensorQuantizer name=images_quantizer, built=True>",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_repr_text(objects: dict[str, Any], name: str) -> None:
    assert repr(objects[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", ["call", "fusion", "artifact", "manifest"])
def test_repr_one_line(objects: dict[str, Any], name: str) -> None:
    text = repr(objects[name])
    assert type(objects[name]).__name__ in text
    assert "\n" not in text
    assert len(text) < 250


def test_repr_fusion_report(objects: dict[str, Any]) -> None:
    assert "2 of 2 layers in INT8" in repr(objects["fusion"])


def test_repr_spec() -> None:
    spec = qat_lib.QuantizationSpec().add("conv", quantize_input=False)
    entry = "LayerConfig(name='conv', quantize_input=False)"
    assert repr(spec) == f"QuantizationSpec(layers=[{entry}])"
    assert eval(entry, {"LayerConfig": qat_lib.LayerConfig}) == spec.layers[0]
