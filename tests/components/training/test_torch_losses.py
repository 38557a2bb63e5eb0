"""Loss and soft targets of a training in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from qatline.components.artifacts.models import TorchRecipe

torch = pytest.importorskip("torch")

from qatline.components.training import torch_losses  # noqa: E402
from qatline.components.training.torch_network import TorchNetwork  # noqa: E402

LOGITS = np.float32([[2, 0, -1], [0, 1, 3], [1, 0, 0]])
X = np.random.default_rng(0).normal(size=(2, 1, 1, 3)).astype(np.float32)
KERNEL = np.float32([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.2]])


def linear(*, softmax: bool = False) -> TorchNetwork:
    """Return a linear classifier of images of one pixel, with the weights ``KERNEL``."""
    nn = torch.nn
    layer = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(KERNEL.T.copy()))
    module = nn.Sequential(nn.Flatten(), layer, *([nn.Softmax(dim=1)] if softmax else []))
    recipe = TorchRecipe(name="x:y", options={}, image_shape=(1, 1, 3), classes=2)
    return TorchNetwork(module=module, recipe=recipe)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("probabilities", [False, True])
def test_loss_is_the_cross_entropy_of_each_sample(probabilities: bool) -> None:
    loss = torch_losses.Loss(3, 0.3, probabilities)
    outputs = torch.from_numpy(softmax(LOGITS) if probabilities else LOGITS)
    targets = loss.targets(torch.tensor([[0], [1], [2]]))
    expected = -((0.7 * np.eye(3) + 0.1) * np.log(softmax(LOGITS))).sum(axis=1)
    np.testing.assert_allclose(loss(targets, outputs), expected, rtol=1e-5)


def test_loss_of_a_wrong_certainty_is_finite() -> None:
    loss = torch_losses.Loss(2, 0.0, True)
    found = loss(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    assert float(found) == pytest.approx(-np.log(1e-7))


@pytest.mark.parametrize("is_softmax", [False, True])
def test_soft_targets_blend_labels_and_the_teacher(is_softmax: bool) -> None:
    soft = torch_losses.SoftTargets(linear(softmax=is_softmax), 0.25)
    images, labels = X[:2], np.eye(2, dtype=np.float32)
    found = soft.blend(linear().tensor(images), torch.from_numpy(labels))
    logits = images.reshape(2, 3) @ KERNEL
    np.testing.assert_allclose(found, 0.75 * labels + 0.25 * softmax(logits), rtol=1e-5)
