"""A trace computes the model's results and labels every op's layer."""

import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from qat_lib import TensorQuantizer, WeightedBaseQuantizeWrapper
from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.export.trace import Trace, trace_model


def run(trace: Trace, *inputs: np.ndarray) -> list[np.ndarray]:
    """Return the traced graph's results, with the weights that it binds."""
    graph = tf.Graph()
    feeds = dict(zip(trace.inputs, inputs, strict=True)) | {
        n: np.asarray(v) for n, v in trace.weights.items()
    }
    with graph.as_default():
        tf.import_graph_def(trace.graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return [np.asarray(y) for y in session.run([name for name, _ in trace.outputs], feeds)]


def check(model: keras.Model, *inputs: np.ndarray, **options: Any) -> Trace:
    """Trace a model; require that the graph gives what the model gives."""
    trace = trace_model(model, **options)
    expected = keras.tree.flatten(
        model(list(inputs) if len(inputs) > 1 else inputs[0], training=False)
    )
    for want, got in zip(expected, run(trace, *inputs), strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-5, atol=1e-5)
    return trace


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def node_scopes(trace: Trace) -> dict[str, set[str]]:
    """Return the operators by the layer that their scope names."""
    found: dict[str, set[str]] = {}
    for node in trace.graph_def.node:
        scope, _, rest = node.name.partition("/")
        if rest and scope in trace.scopes:
            found.setdefault(trace.scopes[scope], set()).add(node.op)
    return found


def test_trace_knows_layers_of_nested_models_by_their_path() -> None:
    inner_input = keras.Input((4,))
    inner = keras.Model(
        inner_input, layers.Dense(3, name="dense", activation="relu")(inner_input), name="inner"
    )
    sequence = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="dense")], name="sequence")
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Softmax(name="probs")(sequence(inner(x))))
    trace = check(model, normal(2, 4))
    paths = ["inner/dense", "sequence/dense", "probs"]
    assert list(trace.scopes.values()) == paths
    assert list(trace.operations) == paths
    assert trace.operations["sequence/dense"] is sequence.layers[-1]
    assert list(trace.tensors.values()) == paths
    assert "Relu" in node_scopes(trace)["inner/dense"]
    assert node_scopes(trace)["probs"] >= {"Softmax"}
    assert {name.partition("/")[0] for name in trace.tensors} == set(trace.scopes)


def test_trace_binds_each_weight_to_its_placeholder() -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(4, name="b")(layers.Dense(4, name="a")(x)))
    trace = check(model, normal(3, 4))
    assert [id(v) for v in trace.weights.values()] == [id(v) for v in model.variables]
    assert all(name.startswith("w") for name in trace.weights)


def test_trace_names_inputs_and_outputs_in_the_models_order() -> None:
    second, first = keras.Input((2,), name="second"), keras.Input((3,), name="first")
    y, z = layers.Dense(3, name="y")(second), layers.Dense(2, name="z")(first)
    model = keras.Model([second, first], [z, y])
    trace = check(model, normal(2, 2), normal(2, 3))
    assert list(trace.inputs.values()) == ["second", "first"]
    assert [name for _, name in trace.outputs] == ["z", "y"]


def test_trace_numbers_outputs_of_one_name() -> None:
    x = keras.Input((3,), name="x")
    y, z = layers.Dense(3, name="y")(x), layers.Dense(3, name="z")(x)
    trace = check(keras.Model(x, [y, z, y, z]), normal(2, 3))
    assert [name for _, name in trace.outputs] == ["y", "z", "y_2", "z_3"]


def test_trace_returns_first_call_tensor_only() -> None:
    x = keras.Input((3,), name="x")
    shared = layers.Dense(3, name="shared")
    trace = check(keras.Model(x, layers.ReLU(name="end")(shared(shared(x)))), normal(2, 3))
    assert list(trace.scopes.values()) == ["shared", "shared", "end"]
    (tensor,) = (name for name, path in trace.tensors.items() if path == "shared")
    assert tensor.startswith("L0/")


class Halves(layers.Layer):
    def call(self, x: Any) -> list[Any]:
        return [x[:, :2], x[:, 2:]]


def test_trace_skips_layer_with_several_outputs() -> None:
    x = keras.Input((5,), name="x")
    halves = Halves(name="halves")(x)
    trace = check(keras.Model(x, [layers.ReLU(name="a")(halves[0]), halves[1]]), normal(2, 5))
    assert list(trace.tensors.values()) == ["a"]
    assert list(trace.scopes.values()) == ["halves", "a"]


def test_trace_follows_calls_with_keywords() -> None:
    x = keras.Input((4,), name="x")
    inner_input = keras.Input((4,))
    inner = keras.Model(inner_input, layers.Dense(4, name="d")(inner_input), name="inner")
    model = keras.Model(x, inner(inputs=x))
    assert list(check(model, normal(2, 4)).scopes.values()) == ["inner/d"]


@pytest.mark.parametrize("late_first", [False, True])
def test_trace_follows_inputs_that_enter_late(late_first: bool) -> None:
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    branches = [layers.Dense(3, name="dense")(a), b]
    model = keras.Model(
        [a, b], layers.Concatenate(name="end")(branches[::-1] if late_first else branches)
    )
    assert set(check(model, normal(2, 4), normal(2, 3)).scopes.values()) == {"dense", "end"}


def test_trace_takes_a_subclassed_model_within_for_one_layer() -> None:
    x = keras.Input((2,), name="x")
    model = keras.Model(x, layers.ReLU(name="end")(custom()(x)))
    assert list(check(model, normal(3, 2)).scopes.values()) == ["custom", "end"]


def test_trace_follows_operations_that_are_no_layers() -> None:
    x = keras.Input((4,), name="x")
    y = keras.ops.concatenate([x * 2.0, keras.ops.relu(x)], axis=-1)
    trace = check(keras.Model(x, y), normal(2, 4))
    assert len(trace.scopes) == 3


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_trace_fixes_the_batch(batch: int | None) -> None:
    x = keras.Input((4,), name="x")
    trace = check(keras.Model(x, layers.Dense(2)(x)), normal(batch or 5, 4), batch=batch)
    (placeholder,) = (
        node
        for node in trace.graph_def.node
        if node.name == next(iter(trace.inputs)).partition(":")[0]
    )
    assert [dim.size for dim in placeholder.attr["shape"].shape.dim] == [batch or -1, 4]


def test_trace_records_the_static_shapes_of_reshapes() -> None:
    x = keras.Input((4, 6), name="x")
    y = layers.Reshape((3, 8), name="r")(x)
    trace = check(keras.Model(x, layers.Flatten(name="f")(y)), normal(2, 4, 6))
    assert [shape for shape, _ in trace.shapes.values()] == [[None, 3, 8], [None, 24]]
    assert {dtype for _, dtype in trace.shapes.values()} == {np.dtype(np.float32)}


def test_trace_records_half_shapes_as_float32() -> None:
    x = keras.Input((4, 6), name="x", dtype="float16")
    trace = trace_model(keras.Model(x, keras.ops.reshape(x, (-1, 24))))
    assert [(shape, str(dtype)) for shape, dtype in trace.shapes.values()] == [
        ([None, 24], "float32")
    ]


def test_trace_takes_half_weights_as_float32() -> None:
    x = keras.Input((4,), name="x", dtype="float16")
    model = keras.Model(x, layers.Dense(3, dtype="float16")(x))
    trace = trace_model(model)
    names = {name.partition(":")[0] for name in trace.weights}
    kinds = {node.attr["dtype"].type for node in trace.graph_def.node if node.name in names}
    assert kinds == {tf.float32.as_datatype_enum}
    assert len(names) == 2


def test_trace_binds_constants_that_a_layer_holds() -> None:
    x = keras.Input((4,), name="x")
    norm = layers.Normalization(mean=[1.0, 2.0, 3.0, 4.0], variance=[1.0, 4.0, 9.0, 16.0])
    model = keras.Model(x, layers.Dense(2)(norm(x)))
    trace = check(model, normal(3, 4))
    assert len(trace.weights) > len(model.variables) - len(norm.variables)


def test_trace_marks_quantizers_and_leaves_their_variables_out() -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2, name="dense")(TensorQuantizer(name="x_quantizer")(x)))
    trace = trace_model(model)
    ((marker, quantizer),) = trace.markers.items()
    assert (marker.split("/")[0], quantizer) == ("L0", "x_quantizer")
    (marked,) = (node for node in trace.graph_def.node if f"{node.name}:0" == marker)
    assert marked.op == "Identity"
    assert [v.path for v in trace.weights.values()] == ["dense/kernel", "dense/bias"]
    values = normal(2, 4)
    np.testing.assert_allclose(run(trace, values)[0], model.get_layer("dense")(values), rtol=1e-5)


def test_trace_tells_the_markers_of_like_named_quantizers_apart() -> None:
    class Twice(layers.Layer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.first = TensorQuantizer(name="q")
            self.second = TensorQuantizer(name="q_1")

        def call(self, x: Any) -> Any:
            # TensorFlow calls the second marker of "q" what the first of "q_1" would be called.
            return self.first(x) + self.first(-x) + self.second(2 * x)

    x = keras.Input((4,), name="x")
    trace = trace_model(keras.Model(x, Twice(name="twice")(x)))
    assert list(trace.markers.values()) == ["q", "q", "q_1"]


def test_trace_knows_the_float_layer_behind_wrappers_and_quantizers() -> None:
    x = keras.Input((4,), name="x")
    shared = WeightedBaseQuantizeWrapper(layers.Dense(4, name="d"), quantize_inputs=False)
    quantizer = TensorQuantizer(name="q")
    y = shared(quantizer(shared(quantizer(x))))
    inner = keras.Model(x, y, name="inner")
    outer = keras.Input((4,), name="outer")
    z = layers.Dropout(0.5, name="drop")(inner(outer))
    model = keras.Model(outer, layers.Dense(2, name="end")(TensorQuantizer(name="z_quantizer")(z)))
    trace = trace_model(model)
    assert list(zip(trace.scopes.values(), trace.origins.values(), strict=True)) == [
        ("inner/q", "outer"),
        ("inner/quant_d", "inner/d"),
        ("inner/q", "inner/d"),
        ("inner/quant_d", "inner/d"),
        ("drop", "drop"),
        ("z_quantizer", "drop"),
        ("end", "end"),
    ]


@pytest.fixture
def _eager() -> Iterator[None]:
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("_eager")
@pytest.mark.parametrize("eager", [False, True])
def test_trace_leaves_the_mode_of_tensorflow_as_it_was(eager: bool) -> None:
    tf.config.run_functions_eagerly(eager)
    x = keras.Input((4,), name="x")
    trace_model(keras.Model(x, layers.Dense(2)(x)))
    assert tf.config.functions_run_eagerly() is eager


def test_trace_puts_a_grouped_convolution_into_one_graph() -> None:
    x = keras.Input((4, 4, 4), name="x")
    trace = trace_model(keras.Model(x, layers.Conv2D(4, 1, groups=2, name="conv")(x)))
    assert not {node.op for node in trace.graph_def.node} & {
        "PartitionedCall",
        "StatefulPartitionedCall",
    }
    assert "Conv2D" in node_scopes(trace)["conv"]


@pytest.mark.parametrize("training", [True, False, None])
def test_trace_warns_of_calls_in_training_only(
    caplog: pytest.LogCaptureFixture, training: bool | None
) -> None:
    x = keras.Input((4,), name="x")
    y = (
        layers.Dropout(0.5, name="monte_carlo")(x)
        if training is None
        else layers.Dropout(0.5)(x, training=training)
    )
    with caplog.at_level(logging.WARNING, logger="qat_lib"):
        trace = trace_model(keras.Model(x, layers.Dense(2)(y)))
    assert ("is called with training=True" in caplog.text) is (training is True)
    assert not {"RandomUniform", "StatelessRandomUniformV2"} & {
        node.op for node in trace.graph_def.node
    }


class Custom(keras.Model):
    def call(self, x: Any) -> Any:
        return x


def custom() -> keras.Model:
    model = Custom(name="custom")
    model(np.zeros((1, 2), np.float32))
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (custom, "Functional or Sequential model. Received: Custom"),
        (lambda: layers.Dense(2), "Functional or Sequential model. Received: Dense"),
        (lambda: 3, "Functional or Sequential model. Received: int"),
        (lambda: keras.Sequential([layers.Dense(2)], name="open"), "built model. 'open' is not"),
        (lambda: keras.Sequential(name="empty"), "built model. 'empty' is not"),
    ],
)
def test_trace_refuses_what_has_no_graph_of_layers(make: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError) as raised:
        trace_model(make())
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["a b", "a%b"])
def test_trace_refuses_a_layers_name_that_tensorflow_refuses(name: str) -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, TensorQuantizer(name=name)(x))
    with pytest.raises(
        UnsupportedModelError, match=f"Expected layer names of letters.*Received: '{name}'"
    ):
        trace_model(model)


def test_refused_name_keeps_keras_usable() -> None:
    x = keras.Input((4,), name="x")
    inner = keras.layers.TimeDistributed(keras.layers.Dense(2, name="a b"))
    with pytest.raises(UnsupportedModelError, match="Received: 'a b'"):
        trace_model(keras.Model(x, inner(keras.layers.Reshape((2, 2))(x))))
    model = keras.Sequential([x, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((2, 4), "float32"), np.ones((2, 1), "float32"), verbose=0)


class Failing(layers.Layer):
    def call(self, x: Any) -> Any:
        if keras.config.is_nnx_enabled() or not isinstance(x, keras.KerasTensor):
            raise ValueError("something else")
        return x


def test_trace_passes_on_what_a_layer_raises() -> None:
    x = keras.Input((4,), name="x")
    with pytest.raises(ValueError, match="something else"):
        trace_model(keras.Model(x, Failing()(x)))
