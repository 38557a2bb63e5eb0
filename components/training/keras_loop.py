"""The training loop of Keras models: epochs, batches, one traced step.

``model.fit`` does the same for one worker, and fails with several (keras issue 20585). With one
worker both give the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from qat_lib.graph.keras_graph import layers_of

ORDERS_PER_EPOCH = 2
"""Orders of the data that an epoch draws: ``model.fit`` makes a second iterator and drops it."""


class KerasLoop:
    """Trains a compiled model.

    Args:
        model: the model; its loss is the mean over a batch.
        is_right: returns 1.0 for each sample whose largest output is its label's, else 0.0.
        callbacks: told of epochs and batches, in order.
    """

    def __init__(
        self,
        model: Any,
        is_right: Callable[[Any, Any], Any],
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> None:
        self._model, self._is_right = model, is_right
        self._callbacks = keras.callbacks.CallbackList(list(callbacks), model=model)
        self._sums = {name: tf.Variable(0.0) for name in ("samples", "loss", "right")}
        self._steps: dict[tuple[bool, ...], Any] = {}

    def run(self, batches: Any, steps: int, epochs: int) -> None:
        """Train.

        Args:
            batches: ``tf.data.Dataset`` of an epoch, which each iteration shuffles anew.
            steps: batches of an epoch, at most.
            epochs: number of epochs.
        """
        # Before layers are frozen: each trained variable has its slots from the start.
        self._model.optimizer.build(self._model.trainable_variables)
        self._callbacks.on_train_begin()
        for epoch in range(epochs):
            self._callbacks.on_epoch_begin(epoch)
            logs = self._run_epoch(batches, steps)
            self._callbacks.on_epoch_end(epoch, logs)
        self._callbacks.on_train_end()

    def _run_epoch(self, batches: Any, steps: int) -> dict[str, Any]:
        """Train on every batch once; return loss and accuracy over the epoch."""
        for total in self._sums.values():
            total.assign(0.0)
        train, logs = self._step(), {}
        iterator, *_ = [iter(batches) for _ in range(ORDERS_PER_EPOCH)]
        for step in range(steps):
            self._callbacks.on_train_batch_begin(step)
            try:
                logs = train(iterator)
            except tf.errors.OutOfRangeError:  # fewer batches than the data promised
                break
            self._callbacks.on_train_batch_end(step, logs)
        return logs

    def _step(self) -> Any:
        """Return the traced step; Keras reads what is trainable while it traces."""
        state = tuple(layer.trainable for layer in layers_of(self._model))
        if state not in self._steps:
            step = tf.function(self._train, reduce_retracing=True, jit_compile=self._compiled())
            self._steps[state] = tf.function(lambda iterator: step(*next(iterator)))
        return self._steps[state]

    def _compiled(self) -> bool:
        """Whether XLA compiles the step, as ``model.fit`` decides."""
        return bool(self._model.jit_compile)

    def _train(self, x: Any, y: Any) -> dict[str, Any]:
        """Take one step; return loss and accuracy of the epoch so far."""
        model, optimizer = self._model, self._model.optimizer
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=outputs, training=True)
            scaled = optimizer.scale_loss(loss)
        weights = model.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights, strict=True))
        samples = tf.cast(tf.shape(x)[0], tf.float32)
        return self._figures(samples, loss, tf.reduce_sum(self._is_right(y, outputs)))

    def _figures(self, samples: Any, loss: Any, right: Any) -> dict[str, Any]:
        sums = self._sums
        seen = sums["samples"].assign_add(samples)
        lost = sums["loss"].assign_add(tf.cast(loss, tf.float32) * samples)
        hits = sums["right"].assign_add(right)
        return {"loss": lost / seen, "accuracy": hits / seen}
