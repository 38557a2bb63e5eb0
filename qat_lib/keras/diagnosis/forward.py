"""A Keras model as one compiled function of flat inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from qat_lib.keras.structure import pack_inputs


def compile_forward(model: Any) -> Callable[..., list[Any]]:
    """Return the function of a model's inputs, in order, that gives its outputs at inference.

    It is traced once, for every batch size that the model takes. Switches of quantizers stay in
    effect.
    """

    def forward(*parts: Any) -> list[Any]:
        return list(keras.tree.flatten(model(pack_inputs(model, parts), training=False)))

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in model.inputs]
    traced: Callable[..., list[Any]] = tf.function(forward).get_concrete_function(*specs)
    return traced
