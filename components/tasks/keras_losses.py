"""Losses and soft targets of the tasks in Keras; ``torch_losses`` returns the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

ops = keras.ops


class KerasLoss:
    """Loss of a task.

    Attributes:
        score: returns the primary metric of each sample of a batch; None without such a metric.
    """

    score: Callable[[Any, Any], Any] | None = None

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample, ``(samples,)`` or ``(samples, ...)``.

        Args:
            targets: a batch of targets, or soft targets.
            outputs: the network's outputs, or several by name.
        """
        raise NotImplementedError

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return targets blended with a teacher's outputs.

        With the loss of the teacher: its last operation decides between logits and probabilities.
        """
        raise NotImplementedError


class OwnLoss(KerasLoss):
    """Loss of a user's task."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.score = getattr(task, "training_score", None)

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the task's loss."""
        return self._task.loss(targets, outputs)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return the task's soft targets."""
        return self._task.soft_targets(targets, outputs, weight)


class CrossEntropy(KerasLoss):
    """Cross-entropy of integer labels with label smoothing; Keras's requires one-hot labels.

    Args:
        classes: number of outputs.
        smoothing: label smoothing, in [0, 1).
        probabilities: whether outputs are probabilities instead of logits.
    """

    def __init__(self, classes: int, smoothing: float, probabilities: bool) -> None:
        self.classes, self.smoothing, self.probabilities = classes, smoothing, probabilities

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        labels = targets
        if not self._is_soft(targets):
            labels = ops.one_hot(ops.cast(ops.reshape(targets, (-1,)), "int32"), self.classes)
        return keras.losses.categorical_crossentropy(
            labels, outputs, from_logits=not self.probabilities, label_smoothing=self.smoothing
        )

    def score(self, targets: Any, outputs: Any) -> Any:
        """Return 1.0 for each sample whose largest output is at the label or largest target."""
        soft = self._is_soft(targets)
        labels = ops.argmax(targets, axis=1) if soft else ops.reshape(targets, (-1,))
        hits = ops.equal(ops.cast(labels, "int64"), ops.cast(ops.argmax(outputs, 1), "int64"))
        return ops.cast(hits, "float32")

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return labels blended with the teacher's probabilities."""
        soft = outputs if self.probabilities else tf.nn.softmax(outputs)
        return (1.0 - weight) * tf.one_hot(targets, self.classes) + weight * soft

    def _is_soft(self, targets: Any) -> bool:
        """Return whether targets have shape ``(samples, classes)`` instead of one label each."""
        return tuple(targets.shape)[1:] == (self.classes,)


class BinaryCrossEntropy(KerasLoss):
    """Mean binary cross-entropy over the classes.

    Args:
        smoothing: label smoothing, in [0, 1).
        probabilities: whether outputs are probabilities instead of logits.
    """

    def __init__(self, smoothing: float, probabilities: bool) -> None:
        self.smoothing, self.probabilities = smoothing, probabilities

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        return keras.losses.binary_crossentropy(
            targets, outputs, from_logits=not self.probabilities, label_smoothing=self.smoothing
        )

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return targets blended with the teacher's probabilities."""
        soft = outputs if self.probabilities else ops.sigmoid(outputs)
        return (1.0 - weight) * targets + weight * soft


class NumberLoss(KerasLoss):
    """Mean Huber loss over the numbers of a sample, or mean squared error.

    Args:
        delta: error above which the Huber loss is linear; None for the squared error.
    """

    def __init__(self, delta: float | None) -> None:
        self.delta = delta

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        if self.delta is None:
            return keras.losses.mean_squared_error(targets, outputs)
        return keras.losses.huber(targets, outputs, delta=self.delta)

    def score(self, targets: Any, outputs: Any) -> Any:
        """Return the absolute error of each sample."""
        return keras.losses.mean_absolute_error(targets, outputs)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return targets blended with the teacher's outputs."""
        return (1.0 - weight) * targets + weight * outputs


class PixelCrossEntropy(KerasLoss):
    """Mean cross-entropy over the pixels of an image, without ignored ones.

    Soft targets are ``(samples, height, width, classes)``; those of ignored pixels are zeros.

    Args:
        classes: number of classes.
        smoothing: label smoothing, in [0, 1).
        probabilities: whether outputs are probabilities instead of logits.
        ignored: label of ignored pixels.
    """

    def __init__(self, classes: int, smoothing: float, probabilities: bool, ignored: int) -> None:
        self.classes, self.smoothing, self.probabilities = classes, smoothing, probabilities
        self.ignored = ignored

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        labels = self._labels(targets)
        losses = keras.losses.categorical_crossentropy(
            labels, outputs, from_logits=not self.probabilities, label_smoothing=self.smoothing
        )
        valid = ops.cast(ops.sum(labels, axis=-1) > 0, losses.dtype)
        counts = ops.maximum(ops.sum(valid, axis=(1, 2)), 1.0)
        return ops.sum(losses * valid, axis=(1, 2)) / counts

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return masks blended with the teacher's probabilities."""
        labels = self._labels(targets)
        valid = ops.sum(labels, axis=-1, keepdims=True)
        soft = outputs if self.probabilities else ops.softmax(outputs, axis=-1)
        return (1.0 - weight) * labels + weight * soft * valid

    def _labels(self, targets: Any) -> Any:
        """Return masks as ``(samples, height, width, classes)``, with zeros for ignored pixels."""
        if len(targets.shape) == 4:
            return targets
        mask = ops.cast(targets, "int32")
        counted = ops.cast(ops.not_equal(mask, self.ignored), "float32")
        return ops.one_hot(mask, self.classes) * ops.expand_dims(counted, -1)
