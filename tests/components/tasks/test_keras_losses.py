"""Losses of the tasks: equal in Keras and PyTorch, and equal to their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qatline.components.tasks import Task, task_for

torch = pytest.importorskip("torch")

GENERATOR = np.random.default_rng(0)
SMOOTHING = 0.1


def case(name: str, probabilities: bool) -> tuple[Task, np.ndarray, np.ndarray]:
    """Return a task, targets and outputs of five samples."""
    if name == "regression":
        task = task_for(name, target_shape=(2,))
        return task, GENERATOR.normal(size=(5, 2)), GENERATOR.normal(scale=2, size=(5, 2))
    if name == "multilabel":
        outputs = GENERATOR.normal(size=(5, 3))
        if probabilities:
            outputs = 1 / (1 + np.exp(-outputs))
        task = task_for(name, classes=tuple("abc"), target_shape=(3,))
        return task, GENERATOR.integers(0, 2, (5, 3)).astype(float), outputs
    shape = () if name == "classification" else (4, 6)
    outputs = GENERATOR.normal(size=(5, *shape, 3))
    if probabilities:
        outputs = np.exp(outputs) / np.exp(outputs).sum(axis=-1, keepdims=True)
    targets = GENERATOR.integers(0, 3, (5, *shape))
    if shape:
        targets[:, :2] = 255  # ignored
    return task_for(name, classes=tuple("abc"), target_shape=shape), targets, outputs


def losses(task: Task, activation: str, smoothing: float) -> tuple[Any, Any]:
    return task.keras_loss(activation, smoothing), task.torch_loss(activation, smoothing)


CASES = [
    ("classification", False),
    ("classification", True),
    ("multilabel", False),
    ("multilabel", True),
    ("regression", False),
    ("segmentation", False),
    ("segmentation", True),
]


@pytest.mark.parametrize(("name", "probabilities"), CASES)
def test_losses_are_equal_in_both_frameworks(name: str, probabilities: bool) -> None:
    task, targets, outputs = case(name, probabilities)
    activation = task.activations[0] if probabilities else ""
    smoothing = 0.0 if name == "regression" else SMOOTHING
    keras_loss, torch_loss = losses(task, activation, smoothing)
    outputs = outputs.astype(np.float32)
    real = targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)
    ours = np.asarray(keras_loss(real.astype(np.float32), outputs))
    theirs = torch_loss(torch.from_numpy(real), torch.from_numpy(outputs)).numpy()
    assert ours.shape == theirs.shape == (5,)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    teacher = GENERATOR.permutation(outputs)
    soft = np.asarray(keras_loss.soft_targets(real, teacher, 0.25))
    same = torch_loss.soft_targets(torch.from_numpy(real), torch.from_numpy(teacher), 0.25)
    np.testing.assert_allclose(soft, same.numpy(), rtol=1e-5, atol=1e-6)
    again = np.asarray(keras_loss(soft, outputs))
    theirs = torch_loss(same, torch.from_numpy(outputs)).numpy()
    np.testing.assert_allclose(again, theirs, rtol=1e-5, atol=1e-6)


def test_losses_follow_their_formulas() -> None:
    task, targets, outputs = case("segmentation", probabilities=True)
    found = np.asarray(task.keras_loss("softmax", 0.0)(targets, outputs))
    counted = outputs[:, 2:].reshape(5, -1, 3)
    picked = np.take_along_axis(counted, targets[:, 2:].reshape(5, -1, 1), axis=-1)
    np.testing.assert_allclose(found, -np.log(picked).mean(axis=(1, 2)), rtol=1e-5)

    task, targets, outputs = case("multilabel", probabilities=True)
    found = np.asarray(task.keras_loss("sigmoid", 0.0)(targets, outputs))
    expected = -(targets * np.log(outputs) + (1 - targets) * np.log(1 - outputs)).mean(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)

    task, targets, outputs = case("regression", probabilities=False)
    found = np.asarray(task.keras_loss("", 0.0)(targets, outputs))
    error = np.abs(outputs - targets)
    huber = np.where(error <= 1, 0.5 * error**2, error - 0.5)
    np.testing.assert_allclose(found, huber.mean(axis=1), rtol=1e-5)
