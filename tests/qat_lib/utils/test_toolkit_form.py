"""Checks by tensorflow-quantization users: in-place spec changes, and the ONNX graph."""

from pathlib import Path
from typing import get_args

import keras
import numpy as np
import onnx
import onnxruntime
import pytest
from keras import layers

from qat_lib import ResNetV1QDQCase, calibrate, quantize_model, utils
from qat_lib.core.spec import LayerConfig, QuantizationSpec
from qat_lib.errors import ExportError, SpecError
from qat_lib.utils.onnx_files import Form

Graph = tuple[dict[str, onnx.NodeProto], onnx.GraphProto]


def residual_network() -> keras.Model:
    """Return a small network: residual, Concatenate, pooling, two Dense layers."""
    image = keras.Input((12, 12, 3), name="image")
    skip = layers.Conv2D(8, 3, padding="same", activation="relu", name="stem")(image)
    x = layers.BatchNormalization(name="bn")(layers.Conv2D(8, 3, padding="same", name="main")(skip))
    x = layers.ReLU(name="active")(layers.Add(name="add")([x, skip]))
    x = layers.Concatenate(name="concat")(
        [x, layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x)]
    )
    x = layers.AveragePooling2D(2, name="pool")(x)
    x = layers.Dense(6, name="hidden", activation="relu")(layers.Flatten(name="flatten")(x))
    return keras.Model(image, layers.Dense(4, activation="softmax", name="probs")(x))


@pytest.fixture(scope="module")
def quantized() -> keras.Model:
    keras.utils.set_random_seed(0)
    spec = QuantizationSpec()
    spec.layers.append(
        LayerConfig("Concatenate", True, quantize_weight=False, quantization_index=["all"])
    )
    model = quantize_model(
        residual_network(), quantization_spec=spec, custom_qdq_cases=[ResNetV1QDQCase()]
    )
    calibrate(
        model, np.random.default_rng(0).normal(size=(8, 12, 12, 3)).astype(np.float32), method="max"
    )
    return model


@pytest.fixture(scope="module")
def converted(quantized: keras.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toolkit") / "folder" / "model.onnx"
    utils.convert_keras_model_to_onnx(quantized, path)
    return path


def above(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[str]:
    """Return the operators before a node's inputs; none for constants."""
    made = {output: n.op_type for n in graph.node for output in n.output}
    return [made[name] for name in node.input if name in made]


def of_layer(graph: onnx.GraphProto, layer: str, op_type: str) -> onnx.NodeProto:
    (found,) = [n for n in graph.node if f"quant_{layer}/" in n.name and n.op_type == op_type]
    return found


def test_only_qdq_nodes_have_name_without_layer(converted: Path) -> None:
    for node in onnx.load(converted).graph.node:
        is_qdq = node.op_type in ("QuantizeLinear", "DequantizeLinear")
        assert ("/" not in node.name) == is_qdq, node.name
        if is_qdq:
            assert node.name.startswith(
                "QuantLinearNode__" if node.op_type[0] == "Q" else "DequantLinearNode__"
            )


@pytest.mark.parametrize(
    ("layer", "op_type"),
    [
        ("stem", "Conv"),
        ("main", "Conv"),
        ("depthwise", "Conv"),
        ("hidden", "MatMul"),
        ("probs", "MatMul"),
    ],
)
def test_weighted_layers_read_two_dequantized_tensors(
    converted: Path, layer: str, op_type: str
) -> None:
    graph = onnx.load(converted).graph
    node = of_layer(graph, layer, op_type)
    assert above(graph, node)[:2] == ["DequantizeLinear"] * 2
    if op_type == "MatMul":
        assert above(graph, of_layer(graph, layer, "Add")) == ["MatMul"]


def test_other_layers_read_dequantized_tensors_on_request(
    converted: Path,
) -> None:
    graph = onnx.load(converted).graph
    assert above(graph, of_layer(graph, "concat", "Concat")) == ["DequantizeLinear"] * 2
    assert above(graph, of_layer(graph, "pool", "AveragePool")) == ["DequantizeLinear"]
    assert above(graph, of_layer(graph, "add", "Add")).count("DequantizeLinear") == 1


def test_every_reader_has_its_own_pair(converted: Path) -> None:
    graph = onnx.load(converted).graph
    readers: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert readers[node.output[0]] == 1, node.name


def test_both_forms_compute_the_same(
    quantized: keras.Model, converted: Path, tmp_path: Path
) -> None:
    utils.convert_keras_model_to_onnx(quantized, tmp_path / "own.onnx", form="qatline")
    images = np.random.default_rng(1).normal(size=(8, 12, 12, 3)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = [
        onnxruntime.InferenceSession(str(p), options) for p in (converted, tmp_path / "own.onnx")
    ]
    one, other = (session.run(None, {"image": images})[0] for session in sessions)
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert len(onnx.load(converted).graph.node) > len(onnx.load(tmp_path / "own.onnx").graph.node)
    assert {p.name for p in converted.parent.iterdir()} == {"model.onnx"}


def moving_network() -> keras.Model:
    """Return a small network: operators that keep a range between layers that read it."""
    image = keras.Input((12, 12, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", name="stem")(image)
    x = layers.BatchNormalization(name="bn")(x)
    pooled = layers.MaxPooling2D(2, name="pool")(x)
    x = layers.ReLU(name="active")(pooled)
    x = layers.Conv2D(8, 3, padding="same", name="main")(x)
    x = layers.Add(name="add")([x, pooled])
    x = layers.MaxPooling2D(2, name="padded_pool")(
        layers.ZeroPadding2D(1, name="pad")(layers.MaxPooling2D(2, name="second_pool")(x))
    )
    x = layers.Flatten(name="flatten")(x)
    return keras.Model(image, layers.Dense(4, name="scores")(x))


def test_layers_behind_carried_ranges_have_pairs(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    spec = QuantizationSpec().add("MaxPooling2D", is_keras_class=True, quantize_weight=False)
    spec.add("add", quantization_index=[1], quantize_weight=False)
    model = quantize_model(moving_network(), quantization_spec=spec)
    images = np.random.default_rng(0).normal(size=(8, 12, 12, 3)).astype(np.float32)
    calibrate(model, images, method="max")
    graphs: dict[str, onnx.GraphProto] = {}
    outputs: dict[str, np.ndarray] = {}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for form in get_args(Form):
        path = tmp_path / f"{form}.onnx"
        utils.convert_keras_model_to_onnx(model, path, form=form)
        graphs[form] = onnx.load(path).graph
        session = onnxruntime.InferenceSession(str(path), options)
        (outputs[form],) = session.run(None, {"image": images})
    theirs, ours = graphs["toolkit"], graphs["qatline"]
    assert above(ours, of_layer(ours, "main", "Conv"))[0] == "Relu"
    assert above(theirs, of_layer(theirs, "main", "Conv"))[0] == "DequantizeLinear"
    assert above(theirs, of_layer(theirs, "add", "Add"))[1] == "DequantizeLinear"
    for pool in ("pool", "second_pool", "padded_pool"):
        assert above(theirs, of_layer(theirs, pool, "MaxPool")) == ["DequantizeLinear"]
    assert above(theirs, of_layer(theirs, "scores", "MatMul"))[0] == "DequantizeLinear"
    # Float layers between them have none.
    (pad,) = [node for node in theirs.node if node.op_type == "Pad"]
    assert above(theirs, pad)[0] == "MaxPool"
    np.testing.assert_array_equal(outputs["toolkit"], outputs["qatline"])


def test_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"one of toolkit, qatline\. Received: 'tf'"):
        utils.convert_keras_model_to_onnx(residual_network(), tmp_path / "model.onnx", form="tf")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_entries_are_changed_in_place() -> None:
    spec = QuantizationSpec().add("Add", is_keras_class=True, quantize_weight=False)
    (entry,) = spec.layers
    assert not entry.quantization_index
    entry.quantization_index = ["all"]
    assert list(entry.quantization_index) == ["all"]
    assert entry.inputs is None
    entry.quantization_index = [1, 0]
    assert entry.inputs == (0, 1)
    assert QuantizationSpec.from_list(spec.to_list()) == spec


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantize_input", "yes"),
        ("quantization_index", ["some"]),
        ("quantization_index", ["all", 0]),
        ("name", ""),
    ],
)
def test_wrong_change_is_refused_and_changes_nothing(key: str, value: object) -> None:
    entry = LayerConfig("add")
    with pytest.raises(SpecError):
        setattr(entry, key, value)
    assert entry == LayerConfig("add")


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(AttributeError, match="Received: 'quantise_input'"):
        LayerConfig("add").quantise_input = False  # type: ignore[attr-defined]
