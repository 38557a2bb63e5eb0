"""Functions that are traced once for all quantizers of a kind."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced_graphs import nodes_of

from qat_lib import TensorQuantizer
from qat_lib.keras.quantizers.shared_graph import shared


def counted() -> tuple[Any, list[tuple[Any, float]]]:
    """Return a shared function and the list to which each trace adds shape and setting."""
    traces: list[tuple[Any, float]] = []

    @shared
    def scaled(x: Any, offset: Any, *, factor: float, training: bool = True) -> Any:
        traces.append((x.shape, factor))
        return x * factor + offset

    return scaled, traces


def test_one_trace_for_each_rank_type_and_setting() -> None:
    scaled, traces = counted()

    @tf.function
    def several(x: Any) -> list[Any]:
        other = tf.reshape(x, (6,))
        half, zero = tf.cast(x, tf.float16), tf.zeros(())
        return [
            scaled(x, zero, factor=2.0),
            scaled(tf.transpose(x), zero + 1.0, factor=2.0),  # the same
            scaled(x, zero, factor=3.0),
            scaled(other, zero, factor=2.0),
            scaled(half, tf.zeros((), tf.float16), factor=2.0),
        ]

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = several(tf.constant(x))
    expected = [2 * x, 2 * x.T + 1, 3 * x, 2 * x.reshape(6), 2 * x]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    matrix = tf.TensorShape([None, None])
    assert traces == [
        (matrix, 2.0),
        (matrix, 3.0),
        (tf.TensorShape([None]), 2.0),
        (matrix, 2.0),
    ]


@pytest.mark.parametrize("xla", [False, True], ids=["eager", "XLA"])
def test_eager_calls_and_xla_take_the_body_itself(xla: bool) -> None:
    scaled, traces = counted()

    def run(x: Any) -> Any:
        return scaled(x, tf.zeros(()), factor=2.0)

    if xla:
        run = tf.function(run, jit_compile=True)
    np.testing.assert_array_equal(run(tf.ones((2, 3))), np.full((2, 3), 2.0))
    assert traces == [((2, 3), 2.0)]


def test_each_call_in_inference_has_a_function_of_its_own() -> None:
    scaled, traces = counted()

    @tf.function
    def twice(x: Any) -> Any:
        once = scaled(x, tf.zeros(()), factor=2.0, training=False)
        return scaled(once, tf.ones(()), factor=2.0, training=False)

    np.testing.assert_array_equal(twice(tf.ones((2, 3))), np.full((2, 3), 5.0))
    assert traces == [(tf.TensorShape([None, None]), 2.0)] * 2


def test_a_tensor_of_unknown_rank_is_a_kind_of_its_own() -> None:
    scaled, traces = counted()
    run = tf.function(
        lambda x: scaled(x, tf.zeros(()), factor=2.0), input_signature=[tf.TensorSpec(None)]
    )
    for shape in ((2,), (2, 3)):
        assert run(tf.ones(shape)).shape == shape
    assert [shape.rank for shape, _ in traces] == [None]


@pytest.mark.parametrize("policy", ["frozen", "ema", "learned", "current"])
def test_a_step_grows_by_few_ops_for_each_quantizer(policy: str) -> None:
    options: dict[str, Any] = {"channel_axes": (-1,)} if policy == "current" else {}
    quantizers = [TensorQuantizer(range_policy=policy, **options) for _ in range(4)]
    for quantizer in quantizers:
        quantizer(tf.zeros((4, 3)))

    def step(x: Any, count: int) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for quantizer in quantizers[:count]:
                y = quantizer(y, training=True)
        assert y.shape == (4, 3)
        return tape.gradient(y, x)

    ops = [
        len(nodes_of(lambda x, count=count: step(x, count), tf.TensorSpec((4, 3))))
        for count in (3, 4)
    ]
    # Handles and values of two variables, the calls of forward and backward pass; with "ema" the
    # calls for the range, and its assignment.
    assert ops[1] - ops[0] <= {"ema": 16}.get(policy, 8)


@pytest.mark.matrix
def test_shared_functions_keep_no_graph_of_a_step_alive() -> None:
    def graph_of_a_step() -> Any:
        quantizer = TensorQuantizer()
        quantizer(tf.zeros((4, 3)))

        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = quantizer(tf.nn.relu(x), training=True)
            return tape.gradient(y, x)

        traced = tf.function(step).get_concrete_function(tf.TensorSpec((4, 3)))
        return weakref.ref(traced.graph)

    graph = graph_of_a_step()
    gc.collect()
    assert graph() is None
