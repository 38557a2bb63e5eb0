"""The scale of a range is the exported one, to the last bit, wherever it is computed."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from qat_lib import TensorQuantizer
from qat_lib.keras.quantizers.scale import scale_of

RANGES = np.random.default_rng(0).uniform(0.1, 9.0, 2000).astype(np.float32)


@pytest.mark.parametrize("jit_compile", [None, False, True])
@pytest.mark.parametrize("high", [7.0, 127.0, 255.0])
def test_scale_of_rounds_once(high: float, jit_compile: bool | None) -> None:
    def run(amax: Any) -> Any:
        return scale_of(amax, high)

    if jit_compile is not None:
        run = tf.function(run, jit_compile=jit_compile)
    np.testing.assert_array_equal(run(tf.constant(RANGES)), RANGES / np.float32(high))


def test_a_division_by_a_constant_is_not_exact_in_graphs() -> None:
    # The reason for ``scale_of``: where this fails, it is no longer needed.
    divided = tf.function(lambda amax: amax / 255.0)(tf.constant(RANGES))
    assert (divided.numpy() != RANGES / np.float32(255)).any()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"range_policy": "frozen", "unsigned": True},
        {"range_policy": "learned", "unsigned": True},
        {"range_policy": "current", "channel_axes": (-1,), "narrow_range": True},
    ],
    ids=lambda settings: settings["range_policy"],
)
def test_graphs_quantize_as_numpy(
    settings: dict[str, Any], jit_compile: bool, training: bool
) -> None:
    quantizer = TensorQuantizer(**settings)
    random = np.random.default_rng(1)
    x = random.normal(size=(64, 32)).astype(np.float32)
    quantizer(x)
    run = tf.function(lambda x: quantizer(x, training=training), jit_compile=jit_compile)
    high, low = (255.0, 0.0) if quantizer.unsigned else (127.0, -127.0)
    for amax in RANGES[:10]:
        if quantizer.range_policy == "current":
            scale = np.abs(x := x * amax).max(axis=0, keepdims=True) / np.float32(high)
        else:
            quantizer.amax = amax
            scale = quantizer.scale
        expected = np.clip(np.round(x / scale), low, high) * scale
        np.testing.assert_array_equal(run(tf.constant(x)), expected)
