"""Exported nodes keep their Keras layer and quantizer through all passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers

import qat_lib
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.identity import Identities
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.preprocessing import Preprocessing
from qat_lib.utils.toolkit_form import to_toolkit_form


def block() -> Any:
    x = keras.Input((8, 8, 4), name="block_in")
    y = layers.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(x)
    y = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm")(y))
    return keras.Model(x, y, name="block")


def network() -> Any:
    """Return a network with nested model, shared layer and Concat."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 4), name="x")
    shared = layers.Conv2D(4, 1, name="shared")
    y = shared(block()(x))
    z = layers.Concatenate(name="concat")([y, shared(y)])
    z = layers.MaxPooling2D(name="pool")(layers.Conv2D(16, 3, name="last")(z))
    z = layers.Flatten(name="flat")(z)
    return keras.Model(x, layers.Dense(3, name="dense")(z))


@pytest.fixture(scope="module")
def quantized() -> Any:
    model = qat_lib.quantize_model(network())
    data = np.random.default_rng(0).normal(size=(8, 8, 8, 4)).astype(np.float32)
    qat_lib.calibrate(model, data, "max")
    return model


@pytest.fixture(scope="module")
def plan() -> Any:
    return qat_lib.plan_quantization(network())


OPTIONS: list[dict[str, Any]] = [
    {},
    {"target": "openvino"},
    {"float_precision": "fp16"},
    {"weights": "qdq", "channels_first_input": True},
    {
        "preprocessing": Preprocessing(image_shape=(8, 8, 4), scale=0.5),
        "embed_preprocessing": True,
    },
]


@pytest.mark.matrix_except("{}", "{'weights': 'qdq'*")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_node_carries_its_keras_layer(
    tmp_path: Path, quantized: Any, options: dict[str, Any]
) -> None:
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx", **options)
    model = onnx.load(tmp_path / "m.onnx")
    known = Identities.of_metadata(read_metadata(model))
    assert set(known.layers) == {node.name for node in model.graph.node}
    graph = OnnxGraph(model)
    assert {node.keras_layer for node in graph.nodes if node.op == "Conv"} == {
        "conv",
        "shared",
        "last",
    }
    names = {layer.name for layer in network().layers} | {"conv", "norm", "relu"}
    assert set(known.layers.values()) <= names | {"preprocessing"}


@pytest.mark.matrix_except("{}", "{'weights': 'qdq'*")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_pair_carries_the_name_of_its_plan_entry(
    tmp_path: Path, quantized: Any, plan: Any, options: dict[str, Any]
) -> None:
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx", **options)
    graph = OnnxGraph.load(tmp_path / "m.onnx")
    tensors: dict[str, set[str]] = {}
    for entry in plan.quantizers:
        tensors.setdefault(entry.name, set()).add(entry.tensor.replace("/", ":").split(":")[0])
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.op == "DequantizeLinear":
            found.setdefault(node.quantizer, set()).add(node.keras_layer)
    # A shared layer's second call is a tensor of its own in the plan, and the same layer.
    assert found == {
        name: {layer.split("@")[0] for layer in calls} for name, calls in tensors.items()
    }
    assert all(node.quantizer == "" for node in graph.nodes if node.op == "Conv")


def test_two_exports_are_equal(tmp_path: Path, quantized: Any) -> None:
    for name in ("a", "b"):
        qat_lib.export_onnx(quantized, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_nested_model_gives_paths(tmp_path: Path) -> None:
    x = keras.Input((8, 8, 4), name="x")
    model = keras.Model(x, block()(x))
    qat_lib.export_onnx(model, tmp_path / "m.onnx")
    graph = OnnxGraph.load(tmp_path / "m.onnx")
    assert {node.op: node.keras_layer for node in graph.nodes if node.op != "Transpose"} == {
        "Conv": "block/conv",
        "Relu": "block/relu",
    }


def test_findings_and_verdicts_carry_the_identity(tmp_path: Path, quantized: Any) -> None:
    path = tmp_path / "m.onnx"
    qat_lib.export_onnx(quantized, path)
    report = qat_lib.analyze_onnx(path)
    assert [(layer.keras_layer, layer.quantizer) for layer in report.layers] == [
        ("conv", "conv_kernel_quantizer"),
        ("shared", "shared_kernel_quantizer"),
        ("shared", "shared_kernel_quantizer"),
        ("last", "last_kernel_quantizer"),
        ("dense", "dense_kernel_quantizer"),
    ]
    assert report.to_dict()["layers"][0]["quantizer"] == "conv_kernel_quantizer"


def test_verification_carries_the_identity_of_lost_and_changed_pairs(
    tmp_path: Path, quantized: Any
) -> None:
    path = tmp_path / "m.onnx"
    qat_lib.export_onnx(quantized, path)
    model = onnx.load(path)
    scales = {tensor.name: tensor for tensor in model.graph.initializer}
    scales["conv_kernel_quantizer/scale"].CopyFrom(
        onnx.numpy_helper.from_array(np.full(4, 3, np.float32), "conv_kernel_quantizer/scale")
    )
    onnx.save(model, path)
    found = {(f.code, f.keras_layer, f.quantizer) for f in qat_lib.verify_onnx(path)}
    assert ("Q03", "conv", "conv_kernel_quantizer") in found


def test_an_engine_s_layers_carry_the_identity(tmp_path: Path, quantized: Any) -> None:
    path = tmp_path / "m.onnx"
    qat_lib.export_onnx(quantized, path, target="onnxruntime")
    spec = qat_lib.BuildSpec(backend="onnxruntime")
    artifact = qat_lib.build_engine(path, spec, output=tmp_path / "m.engine")
    found = [(layer.keras_layer, layer.weighted) for layer in artifact.layers if layer.weighted]
    assert [layer for layer, _ in found] == ["conv", "shared", "shared", "last", "dense"]
    with qat_lib.load_engine(artifact.path) as engine:
        assert [layer.keras_layer for layer in engine.layers()] == [
            layer.keras_layer for layer in artifact.layers
        ]


def test_the_toolkit_s_form_drops_what_names_other_nodes(tmp_path: Path, quantized: Any) -> None:
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx")
    converted = to_toolkit_form(onnx.load(tmp_path / "m.onnx"))
    assert "nodes" not in read_metadata(converted)
