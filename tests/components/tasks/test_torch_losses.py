"""Loss and soft targets of a training in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from qatline.components.tasks.torch_losses import TorchCrossEntropy  # noqa: E402

LOGITS = np.float32([[2, 0, -1], [0, 1, 3], [1, 0, 0]])


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("probabilities", [False, True])
def test_loss_is_the_cross_entropy_of_each_sample(probabilities: bool) -> None:
    loss = TorchCrossEntropy(3, 0.3, probabilities)
    outputs = torch.from_numpy(softmax(LOGITS) if probabilities else LOGITS)
    targets = torch.tensor([[0], [1], [2]])
    expected = -((0.7 * np.eye(3) + 0.1) * np.log(softmax(LOGITS))).sum(axis=1)
    np.testing.assert_allclose(loss(targets, outputs), expected, rtol=1e-5)


def test_loss_of_a_wrong_certainty_is_finite() -> None:
    loss = TorchCrossEntropy(2, 0.0, True)
    found = loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    assert float(found) == pytest.approx(-np.log(1e-7))


@pytest.mark.parametrize("is_softmax", [False, True])
def test_soft_targets_blend_labels_and_the_teacher(is_softmax: bool) -> None:
    loss = TorchCrossEntropy(2, 0.0, is_softmax)
    labels = np.eye(2, dtype=np.float32)
    teacher = softmax(LOGITS[:2, :2]) if is_softmax else LOGITS[:2, :2]
    found = loss.soft_targets(torch.tensor([0, 1]), torch.from_numpy(teacher), 0.25)
    np.testing.assert_allclose(found, 0.75 * labels + 0.25 * softmax(LOGITS[:2, :2]), rtol=1e-5)
