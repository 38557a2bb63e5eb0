"""Cached quantized weights of a Keras model for repeated forward passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.keras.structure import layers_inside, layers_of


@contextmanager
def folded_weights(model: Any) -> Iterator[None]:
    """Quantize the weights of a model once for all calls within the block.

    A quantized model quantizes its weights in each call, because they may have changed. This is
    redundant in ``predict`` and ``evaluate``. Within the block, the variables of the weights
    contain the quantized values, and the weight quantizers are disabled, also in functions traced
    before. The outputs are bit-identical.

    Train, save and export the model outside of the block, with the original weights. A value
    assigned to a weight within the block is kept.

    Args:
        model: a quantized Keras model. Weights shared by two layers and weights with a disabled
            quantizer are not folded. Custom code that reads a weight of another layer reads the
            quantized weight.

    Raises:
        SpecError: the function is called while a graph is traced.

    Examples:
        >>> import keras, qat_lib
        >>> x = keras.Input((4,))
        >>> model = qat_lib.quantize_model(keras.Model(x, keras.layers.Dense(2)(x)))
        >>> with qat_lib.folded_weights(model):
        ...     outputs = model.predict(np.ones((8, 4)), verbose=0)
    """
    if not tf.executing_eagerly():
        raise SpecError(
            "folded_weights sets variables, which a graph can't undo. "
            "Expected a call outside of tf.function."
        )
    folded: list[tuple[Any, Any, Any]] = []
    try:
        for quantizer in _foldable(model):
            trained = tf.convert_to_tensor(quantizer.weight.value)
            quantized = quantizer(trained, training=False)
            folded.append((quantizer, trained, quantized))
            quantizer.weight.assign(quantized)
            quantizer.disable()
        yield
    finally:
        for quantizer, trained, quantized in folded:
            # A different value was assigned within the block: keep it.
            if _equal(quantizer.weight.value, quantized):
                quantizer.weight.assign(trained)
            quantizer.enable()


def _foldable(model: Any) -> list[Any]:
    """Return the enabled weight quantizers that are the only readers of their weights."""
    found = [q for q in model_quantizers(model).values() if q.of_weight and q.enabled]
    if not found:
        return []
    quantizers = Counter(id(quantizer.weight) for quantizer in found)
    holders: Counter[int] = Counter()
    for layer in layers_of(model):
        # ``layer.weights`` includes those of nested layers: count only direct owners.
        inside = {id(each) for part in layers_inside(layer) for each in part.weights}
        holders.update(id(each) for each in layer.weights if id(each) not in inside)
    return [q for q in found if quantizers[id(q.weight)] == 1 and holders[id(q.weight)] == 1]


def _equal(value: Any, expected: Any) -> bool:
    found, wanted = (keras.ops.convert_to_numpy(x) for x in (value, expected))
    return bool(np.all((found == wanted) | (np.isnan(found) & np.isnan(wanted))))
