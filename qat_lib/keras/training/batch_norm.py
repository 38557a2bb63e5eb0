"""Statistics of BatchNormalization in quantization-aware training.

Statistics that follow weights in training lag behind what the weights are rounded to. Either they
stop moving some time before the end (Krishnamoorthi 2018, https://arxiv.org/abs/1806.08342), or
they are measured again at the end (Nagel et al. 2022, https://arxiv.org/abs/2203.11086).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import keras
import tensorflow as tf

from qat_lib.errors import CalibrationError
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.keras.structure import layers_of
from qat_lib.keras.training.retracing import retrace


class FreezeBatchNorm(keras.callbacks.Callback):
    """Freeze every BatchNormalization from an epoch on, until training ends.

    A frozen one normalizes by its moving statistics, as in inference, and its gamma and beta stay
    as they are.

    Args:
        epoch: first epoch with frozen statistics, counted from 0 as Keras does. Default 0.

    Examples:
        >>> import qat_lib
        >>> callbacks = [qat_lib.keras.training.FreezeBatchNorm(epoch=1)]
    """

    def __init__(self, epoch: int = 0) -> None:
        super().__init__()
        self.epoch = epoch
        self._frozen: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Freeze at the first epoch that is late enough."""
        if epoch < self.epoch or self._frozen:
            return
        self._frozen = [layer for layer in batch_norms(self.model) if layer.trainable]
        for layer in self._frozen:
            layer.trainable = False
        retrace(self.model)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Let them train again in a later ``fit``."""
        for layer in self._frozen:
            layer.trainable = True
        self._frozen = []
        retrace(self.model)


def reestimate_batch_norm(model: Any, data: Any, *, batches: int | None = None) -> int:
    """Measure the statistics of every BatchNormalization again, in place.

    They become the mean of the batches' own statistics; weights and ranges stay as they are.

    Args:
        model: a Keras model, quantized or not.
        data: batches of inputs, or tuples whose first item is one, as for ``fit``. Training data
            without augmentation, in batches as large as in training or larger.
        batches: number of batches to take; None, the default, takes all.

    Returns:
        The number of layers that were measured.

    Raises:
        CalibrationError: there is no data.

    Examples:
        >>> import keras, numpy as np, qat_lib
        >>> x = keras.Input((2,))
        >>> model = keras.Model(x, keras.layers.BatchNormalization()(x))
        >>> qat_lib.keras.training.reestimate_batch_norm(model, [np.ones((4, 2), "float32")])
        1
    """
    layers, variables = batch_norms(model), statistics(model)
    if not layers:
        return 0
    sums = [tf.zeros_like(variable.value) for variable in variables]
    run = tf.function(lambda x: model(x, training=True), reduce_retracing=True)
    count = 0
    with _following_each_batch(layers), _ranges_frozen(model):
        for batch in islice(data, batches):
            run(batch[0] if isinstance(batch, tuple) else batch)
            count += 1
            sums = [total + v.value for total, v in zip(sums, variables, strict=True)]
    if not count:
        raise CalibrationError("Expected at least one batch of data. Received none.")
    for variable, total in zip(variables, sums, strict=True):
        variable.assign(total / count)
    return len(layers)


def batch_norms(model: Any) -> list[Any]:
    """Return every BatchNormalization of a model, at any depth."""
    return [
        layer for layer in layers_of(model) if isinstance(layer, keras.layers.BatchNormalization)
    ]


def statistics(model: Any) -> list[Any]:
    """Return the moving means and variances of a model's BatchNormalizations."""
    found = []
    for layer in batch_norms(model):
        found += [layer.moving_mean, layer.moving_variance]
    return found


@contextmanager
def _following_each_batch(layers: list[Any]) -> Iterator[None]:
    """Let moving statistics be those of the last batch alone, within the block."""
    before = [(layer, layer.momentum, layer.trainable) for layer in layers]
    for layer in layers:
        layer.momentum, layer.trainable = 0.0, True
    try:
        yield
    finally:
        for layer, momentum, trainable in before:
            layer.momentum, layer.trainable = momentum, trainable


@contextmanager
def _ranges_frozen(model: Any) -> Iterator[None]:
    """Keep the ranges of a model as they are, within the block."""
    moving = [quantizer for quantizer in model_quantizers(model).values() if not quantizer.frozen]
    for quantizer in moving:
        quantizer.freeze()
    try:
        yield
    finally:
        for quantizer in moving:
            quantizer.unfreeze()
