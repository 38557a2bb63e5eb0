"""Class weights: Keras's numbers, in both frameworks, and clear refusals."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from qat_lib.errors import ConfigError
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.tasks import task_for
from tests.components.training.linear import DATA, X, Y, kernel_of, linear, train
from tests.components.training.test_user_callbacks import BOTH

GIVEN = {"no": 3.0, "yes": 0.5}


def schedule(weights: Any, kind: Any = TrainingSettings, **options: Any) -> Any:
    given = {"epochs": 2, "batch_size": 25, "learning_rate": 0.1, "optimizer": "sgd", **options}
    return kind(augment="none", schedule="constant", class_weights=weights, **given)


@pytest.mark.parametrize("kind", [TrainingSettings, QATSettings])
@pytest.mark.parametrize("framework", BOTH)
def test_losses_are_those_of_keras(framework: str, kind: Any) -> None:
    model, rows = train(framework, schedule(GIVEN, kind))
    expected = linear("keras")
    expected.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = expected.fit(
        X[:25],
        Y[:25],
        batch_size=25,
        epochs=2,
        verbose=0,
        class_weight={0: 3.0, 1: 0.5},
        validation_data=(X[25:], Y[25:]),
    ).history
    assert [row.loss for row in rows] == pytest.approx(history["loss"], rel=1e-5)
    assert [row.val_loss for row in rows] == pytest.approx(history["val_loss"], rel=1e-5)
    np.testing.assert_allclose(kernel_of(model), kernel_of(expected), rtol=1e-5)


def test_balanced_weights_are_those_of_the_samples() -> None:
    counts = np.bincount(Y[:25])
    found = DATA.task.class_weights("balanced", DATA.targets, "key")
    np.testing.assert_allclose(found, 25 / (2 * counts), rtol=1e-6)


def test_balanced_weights_of_pixels_leave_out_ignored_ones() -> None:
    task = task_for("segmentation", classes=["a", "b", "c"], target_shape=(2, 2))
    masks = np.uint8([[[0, 0], [255, 0]], [[1, 255], [0, 0]]])
    found = task.class_weights("balanced", masks, "key")
    np.testing.assert_allclose(found, [6 / 15, 6 / 3, 1])


@pytest.mark.parametrize("framework", BOTH)
def test_weights_of_pixels_scale_their_losses(framework: str) -> None:
    task = task_for("segmentation", classes=["a", "b"], target_shape=(1, 3))
    make: Any = task.keras_loss if framework == "keras" else task.torch_loss
    convert: Any = tf.constant
    if framework == "torch":
        import torch

        convert = torch.tensor
    logits = np.float32([[[[2, 0], [0, 1], [5, 5]]]])
    mask = np.uint8([[[0, 1, 255]]])
    weighted = make("", 0.0)
    weighted.class_weights = task.class_weights({"b": 4.0}, mask, "key")
    losses = np.log1p(np.exp([-2, -1]))
    found = weighted(convert(mask), convert(logits))
    np.testing.assert_allclose(np.asarray(found), [(losses[0] + 4 * losses[1]) / 2], rtol=1e-5)


@pytest.mark.parametrize("framework", BOTH)
def test_unknown_class_is_named(framework: str) -> None:
    with pytest.raises(ConfigError, match=r"qat.class_weights: .* no class 'maybe'; .* no, yes"):
        train(framework, schedule({"maybe": 2.0}, QATSettings))


@pytest.mark.parametrize("name", ["regression", "multilabel"])
def test_other_tasks_refuse(name: str) -> None:
    task = task_for(name, classes=["a", "b"], target_shape=(2,))
    with pytest.raises(ConfigError, match=f"key: the task {name} has no class index"):
        task.class_weights("balanced", np.zeros((3, 2)), "key")
