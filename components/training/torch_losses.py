"""Loss and soft targets in PyTorch; they match ``qatline.components.training.fitting``."""

from __future__ import annotations

import torch
from torch.nn import functional

from qatline.components.training.torch_network import TorchNetwork, ends_in_softmax

EPSILON = 1e-7
"""Minimum distance of a probability from 0 and 1, as in Keras."""


class Loss:
    """Cross-entropy of integer labels or soft targets, with label smoothing.

    Args:
        classes: number of outputs.
        smoothing: label smoothing, in [0, 1).
        probabilities: whether outputs are probabilities instead of logits.
    """

    def __init__(self, classes: int, smoothing: float, probabilities: bool) -> None:
        self.classes, self.smoothing, self.probabilities = classes, smoothing, probabilities

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """Return integer labels ``(samples,)`` as ``(samples, classes)``."""
        return functional.one_hot(labels.reshape(-1).long(), self.classes).float()

    def __call__(self, targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """Return the loss of each sample, ``(samples,)``."""
        smooth = targets * (1.0 - self.smoothing) + self.smoothing / self.classes
        return -(smooth * self._logarithms(outputs)).sum(dim=1)

    def _logarithms(self, outputs: torch.Tensor) -> torch.Tensor:
        if not self.probabilities:
            return functional.log_softmax(outputs, dim=1)
        # Keras normalizes and clips probabilities as well: both frameworks return the same loss.
        whole = outputs / outputs.sum(dim=1, keepdim=True)
        return whole.clamp(EPSILON, 1.0 - EPSILON).log()


class SoftTargets:
    """Labels blended with a teacher's probabilities.

    Args:
        teacher: a trained network with the same outputs.
        weight: weight of its probabilities, in [0, 1]; the labels have the remaining weight.
    """

    def __init__(self, teacher: TorchNetwork, weight: float) -> None:
        self._module, self._weight = teacher.module.eval(), weight
        self._probabilities = ends_in_softmax(teacher)

    def blend(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the blended targets of a batch."""
        with torch.no_grad():
            outputs = self._module(x)
        soft = outputs if self._probabilities else functional.softmax(outputs, dim=1)
        return (1.0 - self._weight) * targets + self._weight * soft
