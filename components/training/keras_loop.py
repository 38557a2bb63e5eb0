"""Training loop of Keras models: epochs, batches, one traced step.

``model.fit`` does the same for one worker but fails with several (keras issue 20585). With one
worker both produce the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from qat_lib.keras.quantizers.split_batch import split_batch
from qat_lib.keras.structure import functional_of, layers_of, own_steps
from qat_lib.keras.training.batch_norm import batch_norms
from qatline.components.data.tf_pipeline import skip_epochs, start_epoch
from qatline.components.training.checkpoints import Resumption
from qatline.components.workers.workers import Workers, synchronized_batch_norms


class KerasLoop:
    """Training loop of a compiled model.

    Args:
        model: the model; its loss is the mean over a batch, and takes all outputs at once.
        score: returns the score of each sample of a batch, for targets and outputs; None for none.
        callbacks: receive epochs and batches, in order.
        workers: workers that train together, each on its rows of every batch. Default: one.
        part_rows: rows per part if a batch's gradients are accumulated over consecutive parts;
            None, the default, processes a batch at once. With several workers each processes its
            rows at once.
        score_name: name of the score in the logs.
        user_callbacks: further callbacks, called after all others.
        is_over: returns whether training ends after the current epoch, in addition to
            ``model.stop_training``.
    """

    def __init__(
        self,
        model: Any,
        score: Callable[[Any, Any], Any] | None,
        callbacks: Sequence[keras.callbacks.Callback],
        workers: Workers | None = None,
        part_rows: int | None = None,
        score_name: str = "accuracy",
        user_callbacks: Sequence[keras.callbacks.Callback] = (),
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._own, self._is_over = list(callbacks), is_over
        self._has_own_step = has_own_step(model)
        self._part_rows = part_rows
        self._model, self._score, self._score_name = model, score, score_name
        self._workers = workers or Workers()
        self._callbacks = keras.callbacks.CallbackList([*callbacks, *user_callbacks], model=model)
        self._sums = {name: tf.Variable(0.0) for name in ("samples", "loss", "score")}
        self._steps: dict[tuple[bool, ...], Any] = {}

    def run(
        self, batches: Any, sizes: Sequence[int], epochs: int, saved: Resumption | None = None
    ) -> None:
        """Train from the first epoch or from a checkpoint.

        Args:
            batches: ``tf.data.Dataset`` of an epoch; each iteration shuffles it again.
            sizes: samples of each batch of an epoch, over all workers.
            epochs: number of epochs.
            saved: the checkpoint, if any.
        """
        saved = saved or Resumption(None, {}, epochs)
        self._callbacks.set_params({"verbose": 0, "epochs": epochs, "steps": len(sizes)})
        self._model.stop_training = False
        # Before layers are frozen: every trainable variable needs its slots from the start.
        self._model.optimizer.build(self._model.trainable_variables)
        self._callbacks.on_train_begin()
        # Restore model, callbacks and order of the data after a checkpoint's epoch.
        if saved.epoch:
            for callback in self._own:
                callback.on_epoch_begin(saved.epoch - 1)  # repeats earlier freezes
            saved.restore()
            skip_epochs(batches, saved.epoch)
        for epoch in range(saved.epoch, epochs):
            # All workers must end in the same epoch.
            if self._workers.share(bool(self._model.stop_training or self._is_over())):
                break
            self._callbacks.on_epoch_begin(epoch)
            with synchronized_batch_norms(batch_norms(self._model), self._workers):
                logs = self._run_epoch(batches, sizes)
            self._callbacks.on_epoch_end(epoch, logs)
            saved.end_epoch(epoch + 1)
        self._callbacks.on_train_end()

    def _run_epoch(self, batches: Any, sizes: Sequence[int]) -> dict[str, Any]:
        """Train on every batch once; return loss and score of the epoch."""
        for total in self._sums.values():
            total.assign(0.0)
        if self._has_own_step:
            self._model.reset_metrics()
        train, logs = self._step(), {}
        iterator = start_epoch(batches)
        for step, size in enumerate(sizes):
            self._callbacks.on_train_batch_begin(step)
            try:
                logs = train(iterator, tf.constant(size))
            except (tf.errors.OutOfRangeError, StopIteration):  # fewer batches than announced
                break
            self._callbacks.on_train_batch_end(step, logs)
            if self._model.stop_training and self._workers.alone:
                break
        return logs

    def _step(self) -> Any:
        """Return the traced step for the current trainable flags; tracing fixes them."""
        if self._has_own_step:
            self._model.make_train_function()
            return lambda batches, _: self._model.train_function(batches)
        state = tuple(layer.trainable for layer in layers_of(self._model))
        if state not in self._steps:
            # Without AutoGraph, as in ``model.fit``: Keras layers need none, and it takes half a second.
            step = tf.function(
                self._train,
                reduce_retracing=True,
                jit_compile=self._compiled(),
                autograph=False,
            )
            self._steps[state] = tf.function(
                lambda batches, size: step(next(batches), size), autograph=False
            )
        return self._steps[state]

    def _compiled(self) -> bool:
        """Return whether XLA compiles the step, as in ``model.fit``; never for unequal parts."""
        # XLA requires static shapes; the last part of a batch may be smaller.
        return bool(self._model.jit_compile) and self._part_rows is None

    def _train(self, batch: tuple[Any, ...], size: Any) -> dict[str, Any]:
        """Take one step; return loss and score of the epoch so far."""
        weights = self._model.trainable_weights
        gradients, loss, score = self._workers.run(self._gradients, batch, size)
        self._model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        samples = tf.cast(size, tf.float32)
        sums = self._sums
        seen = sums["samples"].assign_add(samples)
        lost = sums["loss"].assign_add(tf.cast(loss, tf.float32) * samples)
        figures = {"loss": lost / seen}
        if self._score is not None:
            figures[self._score_name] = sums["score"].assign_add(score) / seen
        return figures

    def _gradients(self, batch: tuple[Any, ...], size: Any) -> tuple[list[Any], Any, Any]:
        """Return gradients, loss and summed score of a batch, over all workers."""
        if self._workers.alone:
            whole = self._part_rows is None
            return self._own_gradients(batch) if whole else self._accumulated(batch)
        rows = _rows(batch)
        of_mean, of_rows = self._workers.shares(rows, size)
        # Keras divides a loss by the number of replicas.
        scale = of_mean * self._workers.count
        with split_batch(self._workers.maximum, of_rows):
            gradients, loss, score = self._own_gradients(batch, scale)
        score *= of_mean / of_rows
        # ``all_reduce`` accepts no None: sum the existing gradients and restore the gaps below.
        known = [tf.convert_to_tensor(each) for each in gradients if each is not None]
        *sums, loss, score = self._workers.total([*known, loss, score])
        found = iter(sums)
        return [None if each is None else next(found) for each in gradients], loss, score

    def _accumulated(self, batch: tuple[Any, ...]) -> tuple[list[Any], Any, Any]:
        """Return the result of ``_own_gradients``, summed over the parts of the batch."""
        weights, rows = self._model.trainable_weights, _rows(batch)

        def add(start: Any, sums: list[Any], loss: Any, score: Any) -> tuple[Any, ...]:
            part = slice(start, tf.minimum(start + self._part_rows, rows))
            share = tf.cast(part.stop - start, tf.float32) / tf.cast(rows, tf.float32)
            # Moving ranges are updated for each part, like batch norms.
            with split_batch(tf.identity, share):
                own = keras.tree.map_structure(lambda each: each[part], batch)
                gradients, lost, scored = self._own_gradients(own, share)
            added = []
            for total, gradient in zip(sums, gradients, strict=True):
                added.append(total if gradient is None else total + gradient)
            return part.stop, added, loss + tf.cast(lost, tf.float32), score + scored

        start = (tf.constant(0), [tf.zeros_like(each) for each in weights], 0.0, 0.0)
        _, sums, loss, score = tf.while_loop(
            lambda begin, *_: begin < rows, add, start, parallel_iterations=1
        )
        return sums, loss, score

    def _own_gradients(
        self, batch: tuple[Any, ...], scale: Any | None = None
    ) -> tuple[list[Any], Any, Any]:
        """Return gradients, loss times ``scale``, and summed score of these rows.

        Without ``scale`` the loss is not scaled.
        """
        model, optimizer = self._model, self._model.optimizer
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            outputs = named_outputs(model, model(x, training=True))
            loss = self._loss(x, y, outputs, sample_weight)
            loss = loss if scale is None else loss * tf.cast(scale, loss.dtype)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_weights)
        score = 0.0 if self._score is None else tf.reduce_sum(self._score(y, outputs))
        return gradients, loss, score

    def _loss(self, x: Any, y: Any, outputs: Any, sample_weight: Any) -> Any:
        """Return the mean loss of these rows, with the model's own losses."""
        model = self._model
        if not isinstance(outputs, Mapping):
            return model.compute_loss(
                x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True
            )
        # For several outputs ``compute_loss`` calls the loss once per output, with its own targets.
        # Keras divides the result by the number of replicas; so must be the model's own losses.
        own = [keras.ops.sum(each) / self._workers.count for each in model.losses]
        return keras.ops.sum([model.loss(y, outputs, sample_weight), *own])


def has_own_step(model: Any) -> bool:
    """Return whether the class of a model defines ``train_step``."""
    return "train_step" in own_steps(model)


def batch_sizes(samples: int, batch_size: int) -> list[int]:
    """Return the samples of each batch of an epoch; the last may be smaller."""
    rest = samples % batch_size
    return [batch_size] * (samples // batch_size) + ([rest] if rest else [])


def named_outputs(model: Any, outputs: Any) -> Any:
    """Return a model's outputs: one, or several by the names of an exported file."""
    flat = keras.tree.flatten(outputs)
    if len(flat) == 1:
        return flat[0]
    return dict(zip(functional_of(model).output_names, flat, strict=True))


def _rows(x: Any) -> Any:
    return tf.shape(keras.tree.flatten(x)[0])[0]
