"""Losses and soft targets of the tasks in Keras; ``torch_losses`` returns the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from qatline.components.client.decoding import SCALE, Levels
from qatline.components.tasks.boxes import BOX_WEIGHT, NEAR

ops = keras.ops


class KerasLoss:
    """Loss of a task.

    Attributes:
        score: returns the primary metric of each sample of a batch; None without such a metric.
        class_weights: factors ``(classes,)`` of the losses by class, as Keras's ``class_weight``;
            soft targets have the mean weight of their classes. None for no factors.
    """

    score: Callable[[Any, Any], Any] | None = None
    class_weights: Any = None

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
        losses = keras.losses.categorical_crossentropy(
            labels, outputs, from_logits=not self.probabilities, label_smoothing=self.smoothing
        )
        return _weighted(losses, labels, self.class_weights)

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
        losses = _weighted(losses, labels, self.class_weights)
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


class BoxLoss(KerasLoss):
    """Quality focal loss of the classes plus generalized IoU loss of the boxes.

    A box belongs to the locations of its map (see ``Levels``) inside of it and near its centre, and
    always to the one nearest to the centre; a location of several boxes to the smallest. The target
    of its class is the IoU of its predicted box. Both losses are sums over an image's locations,
    divided by the number of those with a box.

    Sources: Li et al. 2020 (https://arxiv.org/abs/2006.04388), Rezatofighi et al. 2019
    (https://arxiv.org/abs/1902.09630), Tian et al. 2019 (https://arxiv.org/abs/1904.01355).

    Args:
        classes: number of classes.
        image: height and width in pixels.
    """

    def __init__(self, classes: int, image: tuple[int, int]) -> None:
        self.classes, self.image = classes, image

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        several = isinstance(outputs, Mapping)
        maps = [ops.cast(each, "float32") for each in (outputs.values() if several else [outputs])]
        maps.sort(key=lambda each: -each.shape[1] * each.shape[2])
        levels = Levels([tuple(each.shape[1:3]) for each in maps], self.image)
        raw = ops.concatenate(
            [
                ops.reshape(each, (-1, each.shape[1] * each.shape[2], each.shape[3]))
                for each in maps
            ],
            axis=1,
        )
        targets = ops.cast(targets, "float32")
        boxes, labels, crowd = targets[..., :4], targets[..., 4], targets[..., 5] > 0
        index, positive, ignored = self._assigned(levels, boxes, labels, crowd)
        chosen = ops.one_hot(index, boxes.shape[1]) * positive[..., None]
        expected = ops.matmul(chosen, boxes)
        label = ops.sum(chosen * labels[:, None], axis=-1)
        centers = ops.convert_to_tensor(levels.centers, "float32")
        strides = ops.convert_to_tensor(levels.strides, "float32")
        center = centers + raw[..., self.classes : self.classes + 2] * strides
        half = ops.softplus(raw[..., self.classes + 2 :]) * strides * (SCALE / 2)
        iou, generalized = _overlaps(ops.concatenate([center - half, center + half], -1), expected)
        quality = ops.stop_gradient(iou) * positive
        wanted = ops.one_hot(ops.cast(label, "int32"), self.classes) * quality[..., None]
        logits = raw[..., : self.classes]
        entropy = ops.softplus(logits) - logits * wanted
        focal = ops.sum(entropy * (wanted - ops.sigmoid(logits)) ** 2, axis=-1)
        focal = ops.where(ignored, 0.0, focal)
        count = ops.maximum(ops.sum(positive, axis=1), 1.0)
        lost = ops.sum(focal, axis=1) + BOX_WEIGHT * ops.sum((1.0 - generalized) * positive, axis=1)
        return lost / count

    def _assigned(self, levels: Levels, boxes: Any, labels: Any, crowd: Any) -> tuple[Any, ...]:
        """Return the box of each location, whether it has one, and whether it is in a crowd."""
        low, high = boxes[:, None, :, :2], boxes[:, None, :, 2:]
        centers = ops.convert_to_tensor(levels.centers[None, :, None], "float32")
        strides = ops.convert_to_tensor(levels.strides[None, :, None], "float32")
        inside = ops.all((centers > low) & (centers < high), axis=-1)
        distance = ops.max(ops.abs(centers - (low + high) / 2) / strides, axis=-1)
        side = ops.max(high - low, axis=-1)
        fits = side > ops.convert_to_tensor(levels.smallest[None, :, None], "float32")
        fits &= side <= ops.convert_to_tensor(levels.largest[None, :, None], "float32")
        exists = ops.expand_dims((labels >= 0) & ~crowd, 1)
        own = exists & fits & ((inside & (distance <= NEAR)) | (distance <= 0.5))
        area = ops.where(own, ops.prod(high - low, axis=-1), float("inf"))
        positive = ops.cast(ops.any(own, axis=-1), "float32")
        in_crowd = ops.any(inside & ops.expand_dims((labels >= 0) & crowd, 1), axis=-1)
        return ops.argmin(area, axis=-1), positive, in_crowd & (positive == 0)


def _overlaps(boxes: Any, others: Any) -> tuple[Any, Any]:
    """Return IoU and generalized IoU of boxes ``(..., 4)``."""

    def area(low: Any, high: Any) -> Any:
        return ops.prod(ops.maximum(high - low, 0.0), axis=-1)

    low, high, other_low, other_high = (
        boxes[..., :2],
        boxes[..., 2:],
        others[..., :2],
        others[..., 2:],
    )
    shared = area(ops.maximum(low, other_low), ops.minimum(high, other_high))
    joint = area(low, high) + area(other_low, other_high) - shared
    hull = area(ops.minimum(low, other_low), ops.maximum(high, other_high))
    iou = shared / ops.maximum(joint, 1e-7)
    return iou, iou - (hull - joint) / ops.maximum(hull, 1e-7)


def _weighted(losses: Any, labels: Any, class_weights: Any) -> Any:
    """Multiply losses by the weights of labels ``(..., classes)``."""
    if class_weights is None:
        return losses
    return losses * ops.cast(ops.sum(labels * class_weights, axis=-1), losses.dtype)
