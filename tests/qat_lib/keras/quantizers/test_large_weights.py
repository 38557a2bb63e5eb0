"""The fast forms for large weights against the plain ones, bit for bit."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from traced_graphs import nodes_of

from qat_lib import TensorQuantizer
from qat_lib.keras.quantizers import large_weights
from qat_lib.keras.quantizers.large_weights import LARGE, reduce_channels, spread


def weight(shape: tuple[int, ...]) -> Any:
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values.flat[:6] = [0.0, -0.0, 1e-40, np.inf, -np.inf, 3e38]
    return tf.constant(values)


SHAPES = {
    "large": ((3, 3, 256, 128), (0, 1, 2)),
    "large, two kept": ((1024, 16, 16), (0,)),
    "large, odd rows": ((1031, 256), (0,)),
    "large, kept first": ((256, 1031), (1,)),
    "small": ((3, 3, 8, 4), (0, 1, 2)),
}


@pytest.mark.parametrize(("shape", "axes"), SHAPES.values(), ids=SHAPES)
def test_reduce_channels_equals_one_reduction(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    x = weight(shape)
    for reduce in (tf.reduce_max, tf.reduce_min):
        found = reduce_channels(reduce, x, axes)
        np.testing.assert_array_equal(found, reduce(x, axis=axes, keepdims=True))


@pytest.mark.parametrize("columns", [LARGE // 32, LARGE // 32 - 1])
def test_spread_takes_the_full_shape_of_large_weights(columns: int) -> None:
    x, scale = tf.zeros((32, columns)), tf.ones((1, columns))
    assert spread(scale, x).shape == (x.shape if columns * 32 >= LARGE else scale.shape)


def test_large_weights_quantize_as_with_plain_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tf.constant(np.random.default_rng(1).normal(size=(3, 3, 256, 128)).astype(np.float32))

    def quantized() -> tuple[Any, int]:
        quantizer = TensorQuantizer(
            narrow_range=True, channel_axes=(-1,), range_policy="current", name="q"
        )
        ops = [node.op for node in nodes_of(quantizer, x)]
        return tf.function(quantizer)(x).numpy(), ops.count("Max")

    fast, in_steps = quantized()
    monkeypatch.setattr(large_weights, "LARGE", np.inf)
    plain, at_once = quantized()
    np.testing.assert_array_equal(fast, plain)
    assert (in_steps, at_once) == (2, 1)
