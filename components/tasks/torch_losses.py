"""Losses and soft targets of the tasks in PyTorch; they return the numbers of ``keras_losses``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from qatline.components.client.decoding import SCALE, Levels
from qatline.components.tasks.boxes import BOX_WEIGHT, NEAR

EPSILON = 1e-7
"""Minimum distance of a probability from 0 and 1, as in Keras."""


class TorchLoss:
    """Loss of a task; see ``qatline.components.tasks.keras_losses.KerasLoss``.

    Outputs have their channels in the last axis.
    """

    score: Callable[[Any, Any], Any] | None = None
    class_weights: Any = None

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample, ``(samples,)`` or ``(samples, ...)``."""
        raise NotImplementedError

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return targets blended with a teacher's outputs."""
        raise NotImplementedError


class TorchOwnLoss(TorchLoss):
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


class TorchCrossEntropy(TorchLoss):
    """Cross-entropy of integer labels or soft targets, with label smoothing.

    Args:
        classes: number of outputs.
        smoothing: label smoothing, in [0, 1).
        probabilities: whether outputs are probabilities instead of logits.
    """

    def __init__(self, classes: int, smoothing: float, probabilities: bool) -> None:
        self.classes, self.smoothing, self.probabilities = classes, smoothing, probabilities

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        labels = self._labels(targets)
        losses = _cross_entropy(labels, outputs, self.smoothing, self.probabilities)
        return _weighted(losses, labels, self.class_weights)

    def score(self, targets: Any, outputs: Any) -> Any:
        """Return whether each sample's largest output is at the label or largest target."""
        return outputs.argmax(dim=1) == self._labels(targets).argmax(dim=1)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return labels blended with the teacher's probabilities."""
        soft = outputs if self.probabilities else functional.softmax(outputs, dim=1)
        return (1.0 - weight) * self._labels(targets) + weight * soft

    def _labels(self, targets: torch.Tensor) -> torch.Tensor:
        """Return integer labels as ``(samples, classes)``."""
        if tuple(targets.shape)[1:] == (self.classes,):
            return targets
        return functional.one_hot(targets.reshape(-1).long(), self.classes).float()


class TorchBinaryCrossEntropy(TorchLoss):
    """Mean binary cross-entropy over the classes.

    Args:
        smoothing: label smoothing, in [0, 1).
        probabilities: whether outputs are probabilities instead of logits.
    """

    def __init__(self, smoothing: float, probabilities: bool) -> None:
        self.smoothing, self.probabilities = smoothing, probabilities

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        smooth = targets * (1.0 - self.smoothing) + 0.5 * self.smoothing
        if self.probabilities:
            chances = outputs.clamp(EPSILON, 1.0 - EPSILON)
            losses = functional.binary_cross_entropy(chances, smooth, reduction="none")
        else:
            losses = functional.binary_cross_entropy_with_logits(outputs, smooth, reduction="none")
        return losses.mean(dim=-1)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return targets blended with the teacher's probabilities."""
        soft = outputs if self.probabilities else torch.sigmoid(outputs)
        return (1.0 - weight) * targets + weight * soft


class TorchNumberLoss(TorchLoss):
    """Mean Huber loss over the numbers of a sample, or mean squared error.

    Args:
        delta: error above which the Huber loss is linear; None for the squared error.
    """

    def __init__(self, delta: float | None) -> None:
        self.delta = delta

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        if self.delta is None:
            return functional.mse_loss(outputs, targets, reduction="none").mean(dim=-1)
        losses = functional.huber_loss(outputs, targets, reduction="none", delta=self.delta)
        return losses.mean(dim=-1)

    def score(self, targets: Any, outputs: Any) -> Any:
        """Return the absolute error of each sample."""
        return (outputs - targets).abs().mean(dim=-1)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return targets blended with the teacher's outputs."""
        return (1.0 - weight) * targets + weight * outputs


class TorchPixelCrossEntropy(TorchLoss):
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
        losses = _cross_entropy(labels, outputs, self.smoothing, self.probabilities)
        losses = _weighted(losses, labels, self.class_weights)
        valid = (labels.sum(dim=-1) > 0).to(losses.dtype)
        return (losses * valid).sum(dim=(1, 2)) / valid.sum(dim=(1, 2)).clamp(min=1.0)

    def soft_targets(self, targets: Any, outputs: Any, weight: float) -> Any:
        """Return masks blended with the teacher's probabilities."""
        labels = self._labels(targets)
        soft = outputs if self.probabilities else functional.softmax(outputs, dim=-1)
        return (1.0 - weight) * labels + weight * soft * labels.sum(dim=-1, keepdim=True)

    def _labels(self, targets: torch.Tensor) -> torch.Tensor:
        """Return masks as ``(samples, height, width, classes)``, with zeros for ignored pixels."""
        if targets.ndim == 4:
            return targets
        mask = targets.long()
        counted = mask != self.ignored
        labels = functional.one_hot(torch.where(counted, mask, 0), self.classes).float()
        return labels * counted[..., None]


class TorchBoxLoss(TorchLoss):
    """Quality focal loss plus generalized IoU loss; see ``keras_losses.BoxLoss``.

    Args:
        classes: number of classes.
        image: height and width in pixels.
    """

    def __init__(self, classes: int, image: tuple[int, int]) -> None:
        self.classes, self.image = classes, image

    def __call__(self, targets: Any, outputs: Any) -> Any:
        """Return the loss of each sample."""
        several = isinstance(outputs, Mapping)
        maps = [each.float() for each in (outputs.values() if several else [outputs])]
        maps.sort(key=lambda each: -each.shape[1] * each.shape[2])
        levels = Levels([tuple(each.shape[1:3]) for each in maps], self.image)
        raw = torch.cat([each.flatten(1, 2) for each in maps], dim=1)

        def constant(values: Any) -> torch.Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=raw.device)

        targets = targets.float()
        boxes, labels, crowd = targets[..., :4], targets[..., 4], targets[..., 5] > 0
        low, high = boxes[:, None, :, :2], boxes[:, None, :, 2:]
        centers, strides = constant(levels.centers), constant(levels.strides)
        inside = ((centers[:, None] > low) & (centers[:, None] < high)).all(dim=-1)
        distance = ((centers[:, None] - (low + high) / 2).abs() / strides[:, None]).amax(dim=-1)
        side = (high - low).amax(dim=-1)
        fits = (side > constant(levels.smallest)[:, None]) & (
            side <= constant(levels.largest)[:, None]
        )
        exists = ((labels >= 0) & ~crowd)[:, None]
        own = exists & fits & ((inside & (distance <= NEAR)) | (distance <= 0.5))
        area = torch.where(own, (high - low).prod(dim=-1), torch.inf)
        positive = own.any(dim=-1)
        ignored = (inside & ((labels >= 0) & crowd)[:, None]).any(dim=-1) & ~positive
        chosen = functional.one_hot(area.argmin(dim=-1), boxes.shape[1]) * positive[..., None]
        expected = chosen.float() @ boxes
        label = (chosen * labels[:, None]).sum(dim=-1).long()
        center = centers + raw[..., self.classes : self.classes + 2] * strides
        half = functional.softplus(raw[..., self.classes + 2 :]) * strides * (SCALE / 2)
        iou, generalized = _overlaps(torch.cat([center - half, center + half], -1), expected)
        quality = iou.detach() * positive
        wanted = functional.one_hot(label, self.classes) * quality[..., None]
        logits = raw[..., : self.classes]
        entropy = functional.softplus(logits) - logits * wanted
        focal = (entropy * (wanted - logits.sigmoid()) ** 2).sum(dim=-1) * ~ignored
        lost = focal.sum(dim=1) + BOX_WEIGHT * ((1.0 - generalized) * positive).sum(dim=1)
        return lost / positive.sum(dim=1).clamp(min=1)


def _overlaps(boxes: Any, others: Any) -> tuple[Any, Any]:
    """Return IoU and generalized IoU of boxes ``(..., 4)``."""

    def area(low: Any, high: Any) -> Any:
        return (high - low).clamp(min=0).prod(dim=-1)

    low, high, other_low, other_high = (
        boxes[..., :2],
        boxes[..., 2:],
        others[..., :2],
        others[..., 2:],
    )
    shared = area(torch.maximum(low, other_low), torch.minimum(high, other_high))
    joint = area(low, high) + area(other_low, other_high) - shared
    hull = area(torch.minimum(low, other_low), torch.maximum(high, other_high))
    iou = shared / joint.clamp(min=1e-7)
    return iou, iou - (hull - joint) / hull.clamp(min=1e-7)


def _cross_entropy(
    targets: torch.Tensor, outputs: torch.Tensor, smoothing: float, probabilities: bool
) -> torch.Tensor:
    """Return the cross-entropy over the last axis."""
    if probabilities:
        # Keras normalizes and clips probabilities as well: both frameworks return the same loss.
        whole = outputs / outputs.sum(dim=-1, keepdim=True)
        logarithms = whole.clamp(EPSILON, 1.0 - EPSILON).log()
    else:
        logarithms = functional.log_softmax(outputs, dim=-1)
    smooth = targets * (1.0 - smoothing) + smoothing / targets.shape[-1]
    return -(smooth * logarithms).sum(dim=-1)


def _weighted(losses: torch.Tensor, labels: torch.Tensor, class_weights: Any) -> torch.Tensor:
    """Multiply losses by the weights of labels ``(..., classes)``."""
    if class_weights is None:
        return losses
    weights = torch.as_tensor(class_weights, dtype=losses.dtype, device=losses.device)
    return losses * (labels * weights).sum(dim=-1)
