"""Edits of a traced TensorFlow graph, which keep its results."""

from collections.abc import Callable
from math import erf
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from qat_lib.keras.export.prepare import prepare_graph

X = np.float32([[-2.0, -0.5, 0.0], [0.25, 1.0, 3.0]])


def graph_of(build: Callable[[Any], Any], shape: Any = (None, 3), dtype: Any = tf.float32) -> Any:
    """Return the graph from a placeholder ``x`` to an Identity ``y``."""
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(build(tf.compat.v1.placeholder(dtype, shape, name="x")), name="y")
    return graph.as_graph_def(add_shapes=True)


def run(graph_def: Any, **feeds: np.ndarray) -> np.ndarray:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return np.asarray(
                session.run("y:0", {f"{name}:0": value for name, value in feeds.items()})
            )


def node(graph_def: Any, name: str) -> Any:
    (found,) = (each for each in graph_def.node if each.name == name)
    return found


def ops(graph_def: Any) -> list[str]:
    return [each.op for each in graph_def.node]


ERFC = np.vectorize(lambda x: 1 - erf(x))


@pytest.mark.parametrize(
    ("build", "expected", "op"),
    [
        (lambda x: tf.math.erfc(x), lambda x: ERFC(x), "Sub"),
        (lambda x: tf.math.erfc(tf.nn.relu(x)), lambda x: ERFC(np.maximum(x, 0)), "Sub"),
        (lambda x: tf.math.erfc(tf.negative(x)), lambda x: ERFC(-x), "Sub"),
        (
            lambda x: tf.math.erfc(tf.nn.relu(tf.negative(x))),
            lambda x: ERFC(np.maximum(-x, 0)),
            "Sub",
        ),
        (lambda x: tf.math.erfc(x * (x + 2.0)), lambda x: ERFC(x * (x + 2)), "Sub"),
        (lambda x: tf.math.erfc(tf.negative(x) * 0.5), lambda x: ERFC(-x * 0.5), "AddV2"),
        (
            lambda x: tf.math.erfc(tf.constant(0.5) * tf.negative(x)),
            lambda x: ERFC(-x * 0.5),
            "AddV2",
        ),
        (lambda x: tf.math.erfc(tf.negative(x) * (x + 2.0)), lambda x: ERFC(-x * (x + 2)), "AddV2"),
        (lambda x: tf.math.erfc((x + 2.0) * tf.negative(x)), lambda x: ERFC(-x * (x + 2)), "AddV2"),
        (
            lambda x: tf.math.erfc(tf.unstack(tf.negative(x))[1] * 0.5),
            lambda x: ERFC(-x[1] * 0.5),
            "Sub",
        ),
    ],
    ids=[
        "x",
        "relu",
        "neg",
        "relu of neg",
        "product",
        "-x*c",
        "c*-x",
        "-x*y",
        "y*-x",
        "second output",
    ],
)
def test_prepare_graph_writes_erfc_with_erf(build: Any, expected: Any, op: str) -> None:
    before = graph_of(build, (2, 3))
    prepared = prepare_graph(before)
    np.testing.assert_allclose(run(prepared, x=X), expected(X), atol=1e-6)
    assert "Erfc" not in ops(prepared)
    assert node(prepared, "Erfc").op == op
    assert "Erfc" in ops(before)


def test_prepare_graph_adds_a_product_without_the_sign() -> None:
    """An engine knows the exact GELU by ``1 + erf(x * c)``."""
    prepared = prepare_graph(graph_of(lambda x: tf.math.erfc(tf.negative(x) * 0.5)))
    assert list(node(prepared, "Erfc").input) == ["Erfc/one", "Erfc/erf"]
    assert list(node(prepared, "Erfc/erf").input) == ["Erfc/product"]
    assert "x" in [name.partition(":")[0] for name in node(prepared, "Erfc/product").input]
    for name in ("Erfc/erf", "Erfc/product"):
        assert [
            dim.size for dim in node(prepared, name).attr["_output_shapes"].list.shape[0].dim
        ] == [-1, 3]


def test_prepare_graph_writes_every_erfc() -> None:
    prepared = prepare_graph(
        graph_of(lambda x: tf.math.erfc(x) + tf.math.erfc(tf.negative(x) * 2.0))
    )
    assert ops(prepared).count("Erf") == 2
    np.testing.assert_allclose(run(prepared, x=X), ERFC(X) + ERFC(-2 * X), atol=1e-6)


def test_prepare_graph_writes_erfc_in_branches() -> None:
    """A branch that returns erfc, and one that computes with it."""
    before = graph_of(
        lambda x: tf.cond(
            tf.reduce_sum(x) > 0, lambda: tf.math.erfc(x), lambda: 2.0 * tf.math.erfc(-x)
        ),
        (2, 3),
    )
    prepared = prepare_graph(before)
    inside = [each.op for function in prepared.library.function for each in function.node_def]
    assert "Erfc" not in inside
    assert inside.count("Erf") == 2
    for sign, expected in ((1, ERFC(np.abs(X))), (-1, 2 * ERFC(np.abs(X)))):
        x = sign * np.abs(X)
        np.testing.assert_allclose(run(prepared, x=x), expected, atol=1e-6)


def transposed(x: Any, kernel: Any = (2, 2, 1, 3), rows: Any = 8) -> Any:
    size = tf.stack([tf.shape(x)[0], rows, 6, 1])
    y = tf.nn.conv2d_transpose(x, tf.ones(kernel), size, 2, "SAME")
    y.set_shape((None, rows if isinstance(rows, int) else None, 6, 1))
    return y


def size_of(graph_def: Any, op: str) -> Any:
    (call,) = (each for each in graph_def.node if each.op == op)
    source = node(graph_def, call.input[0].partition(":")[0])
    return call, source


def test_prepare_graph_fixes_transposed_convolution_sizes() -> None:
    call, source = size_of(
        prepare_graph(graph_of(transposed, (None, 4, 3, 3))), "Conv2DBackpropInput"
    )
    assert (source.op, source.name) == ("Const", f"{call.name}/size")
    size = tf.make_ndarray(source.attr["value"].tensor)
    assert (size.tolist(), size.dtype) == ([-1, 8, 6, 1], np.int32)
    assert source.attr["dtype"].type == tf.int32.as_datatype_enum


def test_prepare_graph_says_the_size_in_three_dimensions_too() -> None:
    def build(x: Any) -> Any:
        size = tf.stack([tf.shape(x)[0], 4, 2, 2, 1])
        y = tf.nn.conv3d_transpose(x, tf.ones((2, 2, 2, 1, 1)), size, 2, "SAME")
        y.set_shape((None, 4, 2, 2, 1))
        return y

    _, source = size_of(prepare_graph(graph_of(build, (None, 2, 1, 1, 1))), "Conv3DBackpropInputV2")
    assert tf.make_ndarray(source.attr["value"].tensor).tolist() == [-1, 4, 2, 2, 1]


def test_prepare_graph_leaves_a_size_that_is_open() -> None:
    def build(x: Any) -> Any:
        return transposed(x, rows=2 * tf.shape(x)[1])

    _, source = size_of(prepare_graph(graph_of(build, (None, None, 3, 3))), "Conv2DBackpropInput")
    assert source.op == "Pack"


def test_prepare_graph_leaves_a_size_of_unknown_rank() -> None:
    graph_def = graph_of(transposed, (None, 4, 3, 3))
    call, _ = size_of(graph_def, "Conv2DBackpropInput")
    del call.attr["_output_shapes"]
    _, source = size_of(prepare_graph(graph_def), "Conv2DBackpropInput")
    assert source.op == "Pack"


def test_prepare_graph_writes_half_precision_in_float32() -> None:
    prepared = prepare_graph(graph_of(lambda x: x * 2.0, dtype=tf.float16))
    assert run(prepared, x=X).dtype == np.float32


@pytest.mark.parametrize(("axis", "left"), [(1, 0), (0, 2)])
def test_reversals_that_cancel_are_left_out(axis: int, left: int) -> None:
    prepared = prepare_graph(graph_of(lambda x: tf.reverse(tf.reverse(x + 1, [1]), [axis])))
    behind = reachable(prepared, "y")
    assert sum(each.op == "ReverseV2" for each in behind) == left
    expected = np.flip(np.flip(X + 1, 1), axis)
    np.testing.assert_array_equal(run(prepared, x=X), expected)


def reachable(graph_def: Any, name: str) -> list[Any]:
    by_name = {each.name: each for each in graph_def.node}
    found, waiting = [], [name]
    while waiting:
        found.append(by_name[waiting.pop()])
        waiting += [each.partition(":")[0] for each in found[-1].input]
    return found


@pytest.mark.parametrize("function", [keras.ops.argmax, keras.ops.argmin])
def test_argmax_and_argmin_do_not_read_bits(function: Any) -> None:
    prepared = prepare_graph(graph_of(lambda x: function(x, axis=-1)))
    assert not {"Bitcast", "BitwiseAnd", "SelectV2"} & {n.op for n in reachable(prepared, "y")}
    np.testing.assert_array_equal(run(prepared, x=X), np.asarray(function(X, axis=-1)))


@pytest.mark.parametrize(
    ("indices_of", "left"),
    [
        (lambda x: x, False),
        (lambda x: tf.where(x < 1, x + 4, x), True),
        (lambda x: tf.where(x < 0, x + 3, x), True),
        (lambda x: tf.where(x > 0, x + 4, x), True),
        (lambda x: tf.where(x < 0, x + np.int32([4, 4, 4]), x), True),
    ],
    ids=["keras", "other bound", "other size", "other order", "several numbers"],
)
def test_negative_indices_are_left_to_gather(indices_of: Any, left: bool) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)

    def taken(x: Any) -> Any:
        return tf.gather(table, indices_of(x)) if left else keras.ops.take(table, x, axis=0)

    traced = graph_of(taken, dtype=tf.int32)
    prepared = prepare_graph(traced)
    assert "SelectV2" in {each.op for each in reachable(traced, "y")}
    assert ("SelectV2" in {each.op for each in reachable(prepared, "y")}) == left
    indices = np.int32([[0, 3, 1]])
    if not left:
        np.testing.assert_array_equal(run(prepared, x=indices), table[indices])
