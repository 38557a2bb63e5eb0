"""Takes training steps of a chain of quantized blocks and prints how its peak memory grew.

``python -m tests.qat_lib.keras.quantizers.recomputation kept|recomputed`` prints MiB and, as a check, the
norm of the gradients.
"""

from __future__ import annotations

import resource
import sys
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import qat_lib

BLOCKS, CHANNELS, SIDE, BATCH = 6, 32, 48, 32


def block() -> Any:
    """Return a quantized block of two convolutions, whose ranges stay."""
    image = keras.Input((SIDE, SIDE, CHANNELS))
    y = image
    for _ in range(2):
        y = keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False)(y)
        y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
    plan = qat_lib.plan_quantization(keras.Model(image, y)).with_range_policy("frozen")
    return qat_lib.apply_plan(keras.Model(image, y), plan)


def main(mode: str) -> None:
    """Take two steps."""
    keras.utils.set_random_seed(0)
    blocks = [block() for _ in range(BLOCKS)]
    variables = []
    for each in blocks:
        variables += [variable.value for variable in each.trainable_variables]

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            for each in blocks:
                run = partial(each, training=True)
                x = (tf.recompute_grad(run) if mode == "recomputed" else run)(x)
            loss = tf.reduce_mean(tf.square(x))
        return tf.linalg.global_norm(tape.gradient(loss, variables))

    x = np.random.default_rng(0).random((BATCH, SIDE, SIDE, CHANNELS), dtype=np.float32)
    images = tf.constant(x)
    step.get_concrete_function(images)
    before = peak_mib()
    norms = [float(step(images)) for _ in range(2)]
    sys.stdout.write(f"{peak_mib() - before:.0f} {norms[0]:.5e}\n")


def peak_mib() -> float:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1])
