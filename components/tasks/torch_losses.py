"""Losses and soft targets of the tasks in PyTorch; they return the numbers of ``keras_losses``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

EPSILON = 1e-7
"""Minimum distance of a probability from 0 and 1, as in Keras."""


class TorchLoss:
    """Loss of a task; see ``qatline.components.tasks.keras_losses.KerasLoss``.

    Outputs have their channels in the last axis.
    """

    score: Callable[[Any, Any], Any] | None = None

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
        return _cross_entropy(self._labels(targets), outputs, self.smoothing, self.probabilities)

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
