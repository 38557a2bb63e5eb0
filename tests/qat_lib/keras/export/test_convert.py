"""Conversion by tf2onnx: bound weights, named inputs and outputs, layers.

Every node knows its layer.
"""

import logging
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from keras import layers

from qat_lib import TensorQuantizer
from qat_lib.errors import ExportError
from qat_lib.keras.export import convert as conversion
from qat_lib.keras.export.convert import convert, tf2onnx_opset


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def run(model: ir.Model, *inputs: np.ndarray) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    return [np.asarray(y) for y in session.run(None, dict(zip(names, inputs, strict=True)))]


def check(model: keras.Model, *inputs: np.ndarray, **options: Any) -> ir.Model:
    """Convert a model; require that the graph gives what the model gives."""
    converted = convert(model, **{"opset": 17, **options})
    expected = keras.tree.flatten(
        model(list(inputs) if len(inputs) > 1 else inputs[0], training=False)
    )
    for want, got in zip(expected, run(converted, *inputs), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)
    return converted


def dense(*, name: str = "dense", **options: Any) -> keras.Model:
    x = keras.Input((3,), name="x")
    return keras.Model(x, layers.Dense(2, name=name, **options)(x))


def imports(model: ir.Model) -> dict[str, int]:
    return dict(model.graph.opset_imports)


@pytest.mark.parametrize("opset", [13, 17, 18, 19, 21])
def test_convert_writes_the_asked_operator_set(opset: int) -> None:
    assert imports(check(dense(activation="relu"), normal(4, 3), opset=opset)) == {"": opset}


@pytest.mark.parametrize("opset", [0, 12, 22])
def test_convert_refuses_operator_sets_beyond(opset: int) -> None:
    with pytest.raises(ExportError, match=f"from 13 to 21. Received: {opset}"):
        convert(dense(), opset=opset)


def test_tf2onnx_is_asked_for_what_it_writes() -> None:
    assert [tf2onnx_opset(opset) for opset in (13, 17, 18, 19, 21)] == [13, 17, 18, 18, 18]


def shapes(values: Any) -> list[tuple[str, list[Any]]]:
    return [(v.name, [d if isinstance(d, int) else str(d.value) for d in v.shape]) for v in values]


@pytest.mark.parametrize(("batch", "first"), [(None, "batch"), (5, 5)])
def test_convert_names_inputs_outputs_and_open_dimensions(batch: int | None, first: Any) -> None:
    second, sequence = keras.Input((2,), name="second"), keras.Input((None, 4), name="first")
    y = layers.Dense(3, name="y")(sequence)
    model = keras.Model([second, sequence], [y, layers.ReLU(name="z")(second)])
    converted = check(model, normal(5, 2), normal(5, 7, 4), batch=batch)
    assert shapes(converted.graph.inputs) == [
        ("second", [first, 2]),
        ("first", [first, "first_dim_1", 4]),
    ]
    assert shapes(converted.graph.outputs) == [("y", [first, "y_dim_1", 3]), ("z", [first, 2])]


def test_convert_separates_output_from_input_name() -> None:
    x = keras.Input((3,), name="x")
    converted = check(keras.Model(x, [layers.ReLU(name="y")(x), x]), normal(4, 3))
    assert [v.name for v in converted.graph.outputs] == ["y", "x_output"]


def test_convert_binds_weights_in_their_own_layout() -> None:
    model = dense()
    converted = check(model, normal(4, 3))
    assert [v.name for v in converted.graph.inputs] == ["x"]
    stored = [v for v in converted.graph.initializers.values() if v.name and v.name.startswith("w")]
    found = {
        tuple(v.shape): np.asarray(v.const_value.numpy())
        for v in stored
        if v.const_value is not None
    }
    np.testing.assert_array_equal(found[3, 2], model.layers[-1].kernel)
    np.testing.assert_array_equal(found[2,], model.layers[-1].bias)


def test_convert_records_the_layer_of_each_node() -> None:
    x = keras.Input((3,), name="x")
    inner_input = keras.Input((3,))
    inner = keras.Model(
        inner_input, layers.Dense(2, name="dense", activation="relu")(inner_input), name="inner"
    )
    converted = check(keras.Model(x, layers.Softmax(name="probs")(inner(x))), normal(4, 3))
    found = {node.op_type: node.meta.get("keras_layer") for node in converted.graph}
    assert {found[op] for op in ("MatMul", "Relu")} == {"inner/dense"}
    assert found["Softmax"] == "probs"
    tensors = {
        v.meta["keras_tensor"]
        for n in converted.graph
        for v in n.outputs
        if "keras_tensor" in v.meta
    }
    assert "inner/dense" in tensors
    (relu,) = (node for node in converted.graph if node.op_type == "Relu")
    assert relu.outputs[0].meta["keras_tensor"] == "inner/dense"


def test_nameless_nodes_belong_to_the_named_node_behind_them() -> None:
    x = keras.Input((4, 4, 2))
    y = layers.Conv2D(2, 1, name="before")(x)
    y = layers.UpSampling2D(2, interpolation="bilinear", name="up")(y)
    nodes = check(keras.Model(x, y), normal(2, 4, 4, 2)).graph
    (resize,) = (node for node in nodes if node.op_type == "Resize")
    assert resize.meta["keras_layer"] == "up"


def test_convert_replaces_quantizers_by_pairs() -> None:
    x = keras.Input((3,), name="x")
    y = layers.Dense(2, name="dense")(TensorQuantizer(name="x_quantizer")(x))
    converted = convert(keras.Model(x, TensorQuantizer(name="y_quantizer")(y)), opset=17)
    pairs = [node for node in converted.graph if node.op_type.endswith("eLinear")]
    assert [(node.op_type, node.meta["quantizer"]) for node in pairs] == [
        ("QuantizeLinear", "x_quantizer"),
        ("DequantizeLinear", "x_quantizer"),
        ("QuantizeLinear", "y_quantizer"),
        ("DequantizeLinear", "y_quantizer"),
    ]
    assert [node.meta["keras_layer"] for node in pairs] == [
        "x_quantizer",
        "x_quantizer",
        "y_quantizer",
        "y_quantizer",
    ]
    for quantize, dequantize in (pairs[:2], pairs[2:]):
        assert quantize.outputs[0].dtype == ir.DataType.INT8
        assert dequantize.outputs[0].dtype == ir.DataType.FLOAT
        assert dequantize.inputs[0] is quantize.outputs[0]
        assert quantize.inputs[1:] == dequantize.inputs[1:]
        scale, zero = (value.const_value.numpy() for value in quantize.inputs[1:])
        assert (scale, scale.dtype, zero, zero.dtype) == (1, np.float32, 0, np.int8)
    assert pairs[0].inputs[0].name == "x"
    assert [use.node for use in pairs[0].inputs[0].uses()] == [pairs[0]]
    np.testing.assert_array_equal(run(converted, np.zeros((2, 3), np.float32))[0], np.zeros((2, 2)))


def norms(model: keras.Model) -> dict[str, Any]:
    converted = convert(model, opset=17)
    return {
        n.meta["keras_layer"]: n.meta["batch_norm"]
        for n in converted.graph
        if "batch_norm" in n.meta
    }


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_convert_knows_the_parameters_of_a_batch_normalization(scale: bool, center: bool) -> None:
    x = keras.Input((3,), name="x")
    layer = layers.BatchNormalization(scale=scale, center=center, epsilon=0.25, name="bn")
    model = keras.Model(x, layers.ReLU(name="relu")(layer(x)))
    for index, variable in enumerate(layer.variables):
        variable.assign(np.float32([1, 2, 3]) + index)
    (found,) = norms(model).values()
    np.testing.assert_array_equal(found.mean, layer.moving_mean)
    np.testing.assert_array_equal(found.variance, layer.moving_variance)
    np.testing.assert_array_equal(found.gamma, layer.gamma if scale else np.ones(3))
    np.testing.assert_array_equal(found.beta, layer.beta if center else np.zeros(3))
    assert found.epsilon == 0.25
    assert list(norms(model)) == ["bn"]


class Holder(layers.Layer):
    """Holds some BatchNormalization layers, and runs one after the other."""

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norms = [layers.BatchNormalization() for _ in range(count)]

    def call(self, x: Any) -> Any:
        for norm in self.norms:
            x = norm(x)
        return x


@pytest.mark.parametrize(("count", "known"), [(1, ["holder"]), (2, [])])
def test_convert_looks_for_one_batch_normalization_in_a_layer(count: int, known: list[str]) -> None:
    x = keras.Input((3,), name="x")
    assert list(norms(keras.Model(x, Holder(count, name="holder")(x)))) == known


def test_convert_leaves_the_reshapes_of_tf2onnx() -> None:
    """It makes one of a depthwise kernel, of which TensorFlow knows nothing."""
    x = keras.Input((4, 4, 2), name="x")
    converted = check(
        keras.Model(x, layers.DepthwiseConv2D(2, depth_multiplier=2)(x)), normal(2, 4, 4, 2)
    )
    assert "Reshape" in {node.op_type for node in converted.graph}


def test_convert_gives_a_reshape_the_shape_that_tensorflow_knows() -> None:
    x = keras.Input((4, 6), name="x")
    y = layers.Reshape((3, 8), name="r")(x)
    converted = check(keras.Model(x, layers.Dense(2)(layers.Flatten()(y))), normal(2, 4, 6))
    found = [node.outputs[0] for node in converted.graph if node.op_type == "Reshape"]
    assert [[d if isinstance(d, int) else None for d in v.shape] for v in found] == [
        [None, 3, 8],
        [None, 24],
    ]
    assert {v.dtype for v in found} == {ir.DataType.FLOAT}


def converted_to(monkeypatch: pytest.MonkeyPatch, *nodes: tuple[str, str]) -> None:
    """Let tf2onnx give a graph of operators ``(domain, type)``."""
    made = [
        onnx.helper.make_node(op, ["x"], [f"y{i}"], f"n{i}", domain=d)
        for i, (d, op) in enumerate(nodes)
    ]
    proto = onnx.helper.make_model(onnx.helper.make_graph(made, "g", [], []))
    monkeypatch.setattr(conversion, "_convert_graph", lambda *_: proto)


def test_convert_names_operators_without_a_counterpart(monkeypatch: pytest.MonkeyPatch) -> None:
    converted_to(
        monkeypatch, ("", "Relu"), ("ai.onnx", "NoSuch"), ("other", "Relu"), ("ai.onnx.ml", "Alike")
    )
    with pytest.raises(ExportError) as raised:
        convert(dense(), opset=17)
    assert "in operator set 17 for: Relu (n2), Alike (n3), NoSuch (n1)." in str(raised.value)


def test_convert_names_eight_operators_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    converted_to(monkeypatch, *(("other", f"Op{i}") for i in range(9)))
    with pytest.raises(ExportError) as raised:
        convert(dense(), opset=17)
    assert "Op7 (n7)" in str(raised.value)
    assert "Op8" not in str(raised.value)


def test_convert_goes_by_the_operator_set_that_tf2onnx_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gelu exists since set 20; in set 18 it is foreign."""
    converted_to(monkeypatch, ("", "Gelu"))
    with pytest.raises(ExportError, match=r"operator set 20 for: Gelu \(n0\)"):
        convert(dense(), opset=20)


def test_convert_tells_what_the_version_converter_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("no way"), ValueError("no way")):

        def refuse(proto: Any, opset: int, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
        with pytest.raises(
            ExportError, match=r"to operator set 21: no way\. Export with operator set 18 or older"
        ):
            convert(dense(), opset=21)


def test_convert_tells_what_tf2onnx_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("bare")

    monkeypatch.setattr("tf2onnx.tfonnx.process_tf_graph", fail)
    with pytest.raises(ExportError, match="could not convert the model to operator set 17: 'bare'"):
        convert(dense(), opset=17)


def test_convert_keeps_tf2onnx_quiet_and_its_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, levels = logging.getLogger("tf2onnx"), list[int]()
    logger.setLevel(logging.INFO)

    def look(*args: Any, **kwargs: Any) -> Any:
        levels.append(logger.level)
        assert kwargs["continue_on_error"] is False
        raise KeyError("seen")

    monkeypatch.setattr("tf2onnx.tfonnx.process_tf_graph", look)
    with pytest.raises(ExportError):
        convert(dense(), opset=17)
    assert (levels, logger.level) == ([logging.CRITICAL], logging.INFO)


def test_batch_normalization_is_looked_for_in_layers_only() -> None:
    assert conversion._batch_norm(SimpleNamespace(scale=True)) is None
    assert conversion._batch_norm(layers.ReLU()) is None
