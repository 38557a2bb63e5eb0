"""Layers and TensorFlow graphs that compute in float32 for a while."""

import numpy as np
import pytest

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from qat_lib.keras.export.precision import (  # noqa: E402
    OTHER_FLOATS,
    float32_array,
    float32_for,
    float32_semantics,
    use_float32,
)


class Holder:
    """A model substitute: some layers and a compute type."""

    compute_dtype = "float32"

    def __init__(self, *layers):
        self.layers = layers

    def _flatten_layers(self):
        return self.layers


def dense(policy):
    layer = keras.layers.Dense(2, dtype=policy)
    layer.build((None, 3))
    return layer


@pytest.mark.parametrize(
    ("policy", "stored"),
    [
        ("mixed_float16", "float32"),
        ("mixed_bfloat16", "float32"),
        ("float16", "float16"),
        ("float64", "float64"),
    ],
)
def test_layers_compute_in_float32_within_the_block(policy, stored):
    layer, other = dense(policy), dense("float32")
    before, others = layer.dtype_policy, other.dtype_policy
    with float32_semantics(Holder(layer, other, layer)):
        assert (layer.compute_dtype, layer.variable_dtype) == ("float32", stored)
        assert other.dtype_policy is others
    assert layer.dtype_policy is before
    assert other.dtype_policy is others


def test_layers_compute_as_before_when_the_block_fails():
    layer = dense("mixed_float16")
    before = layer.dtype_policy
    with pytest.raises(ZeroDivisionError), float32_semantics(Holder(layer)):
        raise ZeroDivisionError
    assert layer.dtype_policy is before


def test_integer_layers_stay():
    layer = keras.layers.Layer(dtype="int32")
    with float32_semantics(Holder(layer)):
        assert layer.compute_dtype == "int32"


@pytest.mark.parametrize("given", [True, False])
def test_constants_of_a_normalization_are_computed_again(given):
    """Given, or adapted to data; 0.1 is another number in float16."""
    numbers = {"mean": 0.1, "variance": 0.3} if given else {}
    layer = keras.layers.Normalization(axis=None, dtype="mixed_float16", **numbers)
    layer.build((None, 2))
    if not given:
        layer.adapt(np.float32([[0.0, 0.2], [0.1, 0.1]]))
    mean, variance = layer.mean, layer.variance
    assert mean.dtype == "float16"
    with float32_semantics(Holder(layer)):
        assert layer.mean.dtype == layer.variance.dtype == "float32"
        assert float(np.ravel(layer.mean)[0]) == pytest.approx(0.1, rel=1e-6)
    assert layer.mean is mean
    assert layer.variance is variance


def test_an_unbuilt_normalization_has_no_constants():
    layer = keras.layers.Normalization(mean=0.1, variance=0.3, dtype="mixed_float16")
    with float32_semantics(Holder(layer)):
        assert layer.compute_dtype == "float32"
    assert not layer.built


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float16", "float32"),
        ("float64", "float32"),
        ("float32", "float32"),
        ("int64", "int64"),
        ("bool", "bool"),
    ],
)
def test_float32_array(dtype, expected):
    array = float32_array(np.asarray([[0, 1]], dtype))
    assert array.dtype == expected
    assert array.tolist() == [[0, 1]]


def test_float32_array_of_bfloat16():
    array = float32_array(tf.constant([0.5, 3.0], tf.bfloat16))
    assert array.dtype == "float32"
    assert array.tolist() == [0.5, 3.0]


def test_float32_for_other_floats():
    assert {float32_for(tf.as_dtype(name)) for name in OTHER_FLOATS} == {tf.float32}
    for kept in (tf.float32, tf.int32, tf.bool, tf.string):
        assert float32_for(kept) is kept


def nodes_of(function, *specs):
    """Return a function's graph in float32."""
    graph_def = (
        tf.function(function).get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)
    )
    use_float32(graph_def)
    return graph_def


def run(graph_def, outputs, **inputs):
    """Return what a graph computes: the proof that it is one."""
    with tf.Graph().as_default() as graph:
        inputs = {key: tf.constant(value) for key, value in inputs.items()}
        results = tf.import_graph_def(graph_def, inputs, outputs, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(results)


FLOAT32 = int(tf.float32.as_datatype_enum)


def kinds(graph_def, *, op):
    return [
        {key: attr.type for key, attr in node.attr.items() if attr.type}
        for node in graph_def.node
        if node.op == op
    ]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_operators_and_constants_are_written_in_float32(name):
    kind = tf.as_dtype(name)
    graph_def = nodes_of(
        lambda x: tf.add(x, tf.constant([1.5, 2.5], kind), name="sum"),
        tf.TensorSpec([2], kind, name="x"),
    )
    assert kinds(graph_def, op="AddV2") == [{"T": FLOAT32}]
    (constant,) = [node.attr["value"].tensor for node in graph_def.node if node.op == "Const"]
    assert constant.dtype == FLOAT32
    assert tf.make_ndarray(constant).tolist() == [1.5, 2.5]
    assert run(graph_def, ["sum:0"], x=np.float32([1, 2]))[0].tolist() == [2.5, 4.5]


def test_other_types_and_attributes_stay():
    def function(x):
        return tf.concat([tf.cast(x > 1.0, tf.int64), tf.constant([3], tf.int64)], axis=0)

    before = (
        tf.function(function)
        .get_concrete_function(tf.TensorSpec([2], tf.float32))
        .graph.as_graph_def()
    )
    after = type(before)()
    after.CopyFrom(before)
    use_float32(after)
    assert after == before


def test_lists_of_types_are_written_in_float32():
    graph_def = nodes_of(
        lambda x: tf.identity_n([x, tf.constant([1])])[0], tf.TensorSpec([2], tf.float16, name="x")
    )
    (node,) = [node for node in graph_def.node if node.op == "IdentityN"]
    assert list(node.attr["T"].list.type) == [FLOAT32, tf.int32.as_datatype_enum]


def test_functions_within_are_written_in_float32():
    @tf.function
    def inner(x, n):
        return x + tf.constant(1.5, tf.float16), n

    inner.get_concrete_function(tf.TensorSpec([2], tf.float16), tf.TensorSpec([], tf.int32))
    graph_def = nodes_of(
        lambda x: inner(x, tf.constant(3))[0], tf.TensorSpec([2], tf.float16, name="x")
    )
    (function,) = graph_def.library.function
    arguments = [*function.signature.input_arg, *function.signature.output_arg]
    assert [argument.type for argument in arguments] == [FLOAT32, tf.int32.as_datatype_enum] * 2
    types = {attr.type for node in function.node_def for attr in node.attr.values() if attr.type}
    assert types <= {FLOAT32, tf.int32.as_datatype_enum}


def test_casts_between_floats_vanish():
    def function(x):
        inner = tf.cast(tf.cast(x, tf.float16, name="first"), tf.float32, name="second")
        whole = tf.cast(inner, tf.int32, name="whole")
        return tf.subtract(tf.constant([1.0, 1.0]), inner, name="difference"), whole

    graph_def = nodes_of(function, tf.TensorSpec([2], tf.float32, name="x"))
    nodes = {node.name: node for node in graph_def.node}
    for name in ("first", "second"):
        assert nodes[name].op == "Identity"
        assert set(nodes[name].attr) == {"T", "_output_shapes"}
        assert nodes[name].attr["T"].type == FLOAT32
    assert nodes["difference"].input[1] == nodes["whole"].input[0] == "x"
    assert nodes["difference"].input[0] != "x"
    assert nodes["whole"].op == "Cast"
    difference, whole = run(graph_def, ["difference:0", "whole:0"], x=np.float32([1.25, 3.5]))
    assert (difference.tolist(), whole.tolist()) == ([-0.25, -2.5], [1, 3])


def test_readers_of_waiting_cast_read_its_data():
    """What it waits for is one of its inputs, too."""

    def function(x):
        with tf.control_dependencies([tf.constant(0, name="first")]):
            inner = tf.cast(x, tf.float16, name="cast")
        return tf.negative(inner, name="negative")

    nodes = {
        node.name: node
        for node in nodes_of(function, tf.TensorSpec([2], tf.float32, name="x")).node
    }
    assert list(nodes["cast"].input) == ["x", "^first"]
    assert list(nodes["negative"].input) == ["x"]


def test_operators_that_are_no_casts_stay():
    """A Cast is known by its operator, not its attributes."""
    graph_def = nodes_of(
        lambda x: tf.bitcast(x, tf.int32, name="bits"), tf.TensorSpec([2], tf.float32, name="x")
    )
    assert [node.op for node in graph_def.node if node.name == "bits"] == ["Bitcast"]
