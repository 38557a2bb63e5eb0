"""A Keras model as one compiled function of flat inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from qat_lib.keras.structure import pack_inputs


def compile_forward(model: Any) -> Callable[..., list[Any]]:
    """Return a compiled inference function from the inputs of a model, in order, to its outputs.

    The function is traced once and accepts every batch size of the model. Switches of quantizers
    remain effective after tracing.
    """

    def forward(*parts: Any) -> list[Any]:
        return list(keras.tree.flatten(model(pack_inputs(model, parts), training=False)))

    # Fixed signature from the symbolic inputs: a plain tf.function would retrace for the smaller
    # last batch.
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in model.inputs]
    traced: Callable[..., list[Any]] = tf.function(forward).get_concrete_function(*specs)
    return traced
