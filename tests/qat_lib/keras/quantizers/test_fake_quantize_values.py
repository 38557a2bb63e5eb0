"""The fake-quantize op on known values.

Quicker than the properties of test_fake_quantize.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from qat_lib import fake_quantize
from qat_lib.core.ranges import integer_bounds
from qat_lib.keras.quantizers import AMAX_FLOOR, export_mode, quantization_scale
from qat_lib.keras.quantizers.modes import export_marker, is_exporting

STEP = 2.0**-4
"""A power of two: every multiple and every tie is exact."""


def integers(values: list[float], **options: Any) -> list[float]:
    """Return the integers of values given in steps."""
    high = integer_bounds(options.get("num_bits", 8), False, options.get("unsigned", False))[1]
    y = fake_quantize(tf.constant(values) * STEP, high * STEP, **options)
    return [float(q) for q in y.numpy() / STEP]


@pytest.mark.parametrize(
    ("options", "least", "greatest"),
    [
        ({}, -128, 127),
        ({"narrow_range": True}, -127, 127),
        ({"unsigned": True}, 0, 255),
        ({"num_bits": 2}, -2, 1),
        ({"num_bits": 4, "narrow_range": True}, -7, 7),
        ({"num_bits": 16, "unsigned": True}, 0, 65535),
    ],
)
@pytest.mark.parametrize("learned", [False, True])
def test_fake_quantize_rounds_to_even_and_saturates(
    options: dict[str, Any], least: int, greatest: int, learned: bool
) -> None:
    near = [greatest - 0.5, greatest - 0.25, greatest, greatest + 0.25, greatest + 9.0]
    far = [least - 9.0, least - 0.25, least, least + 0.25, 0.0, 0.5, 0.75]
    expected = [
        least,
        least,
        least,
        least,
        0,
        0,
        1,
        greatest - 1,
        greatest,
        greatest,
        greatest,
        greatest,
    ]
    assert integers([*far, *near], learned=learned, **options) == expected


def test_integer_bounds_are_signed_by_default() -> None:
    assert integer_bounds(8, False) == (-128, 127)
    assert integer_bounds(8, True) == (-127, 127)


def test_scale_defaults_to_signed_8_bits() -> None:
    assert quantization_scale(127.0).numpy() == 1.0
    assert quantization_scale(255.0, unsigned=True).numpy() == 1.0
    assert quantization_scale(7.0, 4).numpy() == 1.0
    assert quantization_scale(0.0).numpy() == np.float32(2.0**-24)
    assert AMAX_FLOOR == 127 * 2.0**-24


@pytest.mark.parametrize("learned", [False, True])
def test_range_below_floor_counts_as_floor(learned: bool) -> None:
    y = fake_quantize(tf.constant([2.0**-24, 2.0**-23, 1.0]), 0.0, learned=learned).numpy()
    assert y.tolist() == [2.0**-24, 2.0**-23, AMAX_FLOOR]


def gradients(x: Any, amax: Any, upstream: Any, **options: Any) -> tuple[np.ndarray, Any]:
    source, range_ = tf.constant(x, tf.float32), tf.constant(amax, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([source, range_])
        y = fake_quantize(source, range_, **options) * tf.constant(upstream, tf.float32)
    dx, damax = tape.gradient(y, [source, range_])
    return dx.numpy(), None if damax is None else damax.numpy()


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    ("options", "least", "greatest"),
    [({}, -128, 127), ({"narrow_range": True}, -127, 127), ({"unsigned": True}, 0, 255)],
)
def test_the_gradient_passes_where_the_integers_reach(
    options: dict[str, Any], least: int, greatest: int, learned: bool
) -> None:
    x = (
        np.float32(
            [least - 0.25, least, least + 0.25, 1, greatest - 0.25, greatest, greatest + 0.25]
        )
        * STEP
    )
    dx, damax = gradients(x, greatest * STEP, [1, 2, 3, 4, 5, 6, 7], learned=learned, **options)
    assert dx.tolist() == [0, 2, 3, 4, 5, 6, 0]
    assert (damax is None) is not learned


def test_learned_range_has_gradient_of_lsq() -> None:
    """Gradient ``q - x/s`` inside, ``q`` outside.

    Both over ``127 * sqrt(N * 127)``.
    """
    x = np.float32([[0.25, -200, 3.75], [2.5, 128, 4.25]]) * STEP
    upstream = np.float32([[1, 2, 4], [8, 16, 32]])
    terms = np.float32([[-0.25, -128, 0.25], [-0.5, 127, -0.25]]) * upstream
    for shape, axes, shared in (((), (0, 1), 6), ((1, 3), (0,), 2), ((2, 1), (1,), 3)):
        _, damax = gradients(x, np.full(shape, 127 * STEP), upstream, learned=True)
        expected = terms.sum(axis=axes, keepdims=bool(shape)) / 127 / np.sqrt(shared * 127)
        assert damax.shape == shape
        np.testing.assert_allclose(damax, expected, rtol=1e-5)


def test_learned_range_without_channels_has_empty_gradient() -> None:
    dx, damax = gradients(np.zeros((2, 0)), np.ones((1, 0)), np.zeros((2, 0)), learned=True)
    assert (dx.shape, damax.shape) == ((2, 0), (1, 0))


def test_ranges_of_channels_are_each_their_own() -> None:
    x = np.float32([[1, 1], [3, 3]])
    y = fake_quantize(tf.constant(x), tf.constant([[1.0, 2.0]]), num_bits=2).numpy()
    assert y.tolist() == [[1, 0], [1, 2]]
    dx, _ = gradients(x, [[1.0, 4.0]], np.ones((2, 2)))
    assert dx.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fake_quantize_keeps_the_data_type(dtype: str) -> None:
    y = fake_quantize(tf.constant([0.5, 3.0], dtype), 1.0, num_bits=2)
    assert (y.dtype.name, y.numpy().tolist()) == (dtype, [0, 1])


def test_export_marker_is_named_after_quantizer() -> None:
    graph = tf.Graph()
    with graph.as_default():
        y = export_marker(tf.zeros((2, 3), tf.float16), "x_quantizer")
    assert (y.op.type, y.op.name, y.dtype, y.shape) == (
        "Identity",
        "x_quantizer",
        tf.float16,
        (2, 3),
    )
    assert export_marker(tf.constant([0.3, 500.0]), "q").numpy().tolist() == [
        np.float32(0.3),
        500.0,
    ]


def test_export_mode_ends_with_its_block() -> None:
    assert not is_exporting()
    with export_mode():
        assert is_exporting()
        with export_mode():
            assert is_exporting()
        assert is_exporting()
    assert not is_exporting()


def test_export_mode_notes_tensor_of_each_marker() -> None:
    with tf.Graph().as_default(), export_mode() as markers:
        for name in ("q", "q", "q_1"):
            export_marker(tf.zeros((2,)), name)
    assert markers == {"q:0": "q", "q_1:0": "q", "q_1_1:0": "q_1"}
    with export_mode() as markers:
        export_marker(tf.zeros((2,)), "q")
    assert markers == {}
