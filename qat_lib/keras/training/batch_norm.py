"""BatchNormalization statistics in quantization-aware training.

During training, moving statistics lag behind the rounded weights. Two remedies are common: freeze
the statistics before the end of training (Krishnamoorthi 2018, https://arxiv.org/abs/1806.08342),
or re-estimate them afterwards (Nagel et al. 2022, https://arxiv.org/abs/2203.11086).
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
    """Freeze all BatchNormalizations from a given epoch to the end of training.

    A frozen BatchNormalization normalizes by its moving statistics, as in inference, and does not
    train gamma and beta.

    Args:
        epoch: first epoch with frozen statistics, counted from 0 as in Keras. Default 0.

    Examples:
        >>> import qat_lib
        >>> callbacks = [qat_lib.keras.training.FreezeBatchNorm(epoch=1)]
    """

    def __init__(self, epoch: int = 0) -> None:
        super().__init__()
        self.epoch = epoch
        self._frozen: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Freeze the layers at the configured epoch, or at the first epoch after it."""
        if epoch < self.epoch or self._frozen:
            return
        # Only layers frozen here are unfrozen at the end: the user may have frozen others.
        self._frozen = [layer for layer in batch_norms(self.model) if layer.trainable]
        for layer in self._frozen:
            layer.trainable = False
        retrace(self.model)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Unfreeze the layers for later calls of ``fit``."""
        for layer in self._frozen:
            layer.trainable = True
        self._frozen = []
        retrace(self.model)


def reestimate_batch_norm(model: Any, data: Any, *, batches: int | None = None) -> int:
    """Re-estimate the moving statistics of all BatchNormalizations in place.

    The new statistics are the mean of the statistics of all batches; weights and ranges do not
    change.

    Args:
        model: a Keras model, quantized or not.
        data: batches of inputs, or tuples starting with inputs, as for ``fit``. Use training data
            without augmentation, and a batch size at least that of training.
        batches: number of batches to use; None, the default, uses all.

    Returns:
        The number of re-estimated layers.

    Raises:
        CalibrationError: the data is empty.

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
    # Traced at the first call, within the block below: momentum is a constant of the trace.
    run = tf.function(lambda x: model(x, training=True), reduce_retracing=True, autograph=False)
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
    """Return all BatchNormalizations of a model, at any depth."""
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
    """Make moving statistics equal to those of the last batch, within the block."""
    # Keras updates moving statistics only in trainable layers.
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
    """Freeze the ranges of a model within the block."""
    # ``training=True`` would also update the ranges of activations.
    moving = [quantizer for quantizer in model_quantizers(model).values() if not quantizer.frozen]
    for quantizer in moving:
        quantizer.freeze()
    try:
        yield
    finally:
        for quantizer in moving:
            quantizer.unfreeze()
