"""Training on arrays with sample weights: Keras's numbers, in both frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.tasks import Task, task_for
from qatline.components.training.array_data import ArrayData
from tests.components.training.linear import DATA, X, Y, kernel_of, linear, train
from tests.components.training.test_user_callbacks import BOTH

WEIGHTS = np.random.default_rng(1).uniform(0, 3, 25).astype(np.float32)
WEIGHTED = replace(DATA, training=replace(DATA.training, weights=WEIGHTS))


def schedule(kind: Any = TrainingSettings, **options: Any) -> Any:
    given = {"epochs": 2, "batch_size": 25, "learning_rate": 0.1, "optimizer": "sgd", **options}
    return kind(schedule="constant", **{"augment": "none", **given})


def losses(rows: list[Any]) -> list[float]:
    return [row.loss for row in rows]


@pytest.mark.parametrize("kind", [TrainingSettings, QATSettings])
@pytest.mark.parametrize("framework", BOTH)
def test_weighted_losses_are_those_of_keras(framework: str, kind: Any) -> None:
    """Class weights and sample weights multiply; validation has neither."""
    classes = {"no": 3.0, "yes": 0.5}
    model, rows = train(framework, schedule(kind, class_weights=classes), data=WEIGHTED)
    expected = linear("keras")
    expected.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    history = expected.fit(
        X[:25],
        Y[:25],
        sample_weight=WEIGHTS * np.where(Y[:25], 0.5, 3.0),
        batch_size=25,
        epochs=2,
        verbose=0,
        validation_data=(X[25:], Y[25:]),
    ).history
    assert losses(rows) == pytest.approx(history["loss"], rel=1e-5)
    assert [row.val_loss for row in rows] == pytest.approx(history["val_loss"], rel=1e-5)
    np.testing.assert_allclose(kernel_of(model), kernel_of(expected), rtol=1e-5)


@pytest.mark.parametrize("framework", BOTH)
def test_weight_zero_leaves_samples_out(framework: str) -> None:
    used = np.arange(24) % 2 == 0
    weights = np.float32(used * 2.0)  # the mean over the batch stays that of the used half
    samples = Labelled(x=X[:24], targets=Y[:24], weights=weights)
    found, rows = train(framework, schedule(), data=replace(DATA, training=samples))
    half = Labelled(x=X[:24][used], targets=Y[:24][used])
    expected, half_rows = train(framework, schedule(), data=replace(DATA, training=half))
    assert losses(rows) == pytest.approx(losses(half_rows), rel=1e-5)
    np.testing.assert_allclose(kernel_of(found), kernel_of(expected), rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_steps": 4},
        {"augment": "tests.components.training.test_array_data:unchanged"},
    ],
    ids=["parts", "augmented"],
)
@pytest.mark.parametrize("framework", BOTH)
def test_weights_follow_their_samples(framework: str, options: Any) -> None:
    plain, rows = train(framework, schedule(batch_size=10), data=WEIGHTED)
    found, other_rows = train(framework, schedule(batch_size=10, **options), data=WEIGHTED)
    np.testing.assert_allclose(kernel_of(found), kernel_of(plain), rtol=1e-4)
    assert losses(other_rows) == pytest.approx(losses(rows), rel=1e-4)


def unchanged(inputs: Any, targets: Any) -> Any:
    return inputs, targets


@pytest.mark.parametrize("framework", BOTH)
def test_weights_scale_losses_against_a_teacher(framework: str) -> None:
    doubled = replace(DATA, training=replace(DATA.training, weights=np.full(25, 2, np.float32)))
    given = {"teacher": linear(framework), "distillation": 0.5}
    found = [
        train(framework, schedule(QATSettings, epochs=1), data=data, **given)[1][0].loss
        for data in (DATA, doubled)
    ]
    assert found[1] == pytest.approx(2 * found[0], rel=1e-5)


@keras.saving.register_keras_serializable("test_array_data")
class Own(keras.Model):
    """Has a training step of its own."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_own_train_step_receives_weights() -> None:
    model = linear("keras")
    own, rows = train("keras", schedule(), Own(model.inputs, model.outputs), data=WEIGHTED)
    plain, expected = train("keras", schedule(), data=WEIGHTED)
    assert losses(rows) == pytest.approx(losses(expected), rel=1e-6)
    np.testing.assert_allclose(own.get_weights()[0], kernel_of(plain), rtol=1e-6)


class Sum(Task):
    """Adds up two outputs."""

    def loss(self, targets: Any, outputs: Any) -> Any:
        difference = outputs["a"] + outputs["b"] - targets[:, None]
        return (difference**2)[:, 0]

    def decode(self, outputs: Any) -> Any:
        return outputs["a"] + outputs["b"]

    def score(self, predictions: Any, targets: Any) -> Any:
        return -((predictions[:, 0] - targets) ** 2)


def test_weights_scale_the_loss_of_several_outputs() -> None:
    task = Sum()
    task.data = task_for("regression", target_shape=()).data
    samples = Labelled(x=X[:25], targets=X[:25, 0, 0, 0], weights=WEIGHTS)
    data = ArrayData(training=samples, validating=samples, task=task)
    x = keras.Input((1, 1, 3))
    flat = keras.layers.Flatten()(x)
    outputs = {name: keras.layers.Dense(1, name=name)(flat) for name in "ab"}
    model = keras.Model(x, outputs)
    found = model.predict(X[:25], verbose=0)
    errors = (found["a"] + found["b"])[:, 0] - samples.targets
    _, (row,) = train("keras", schedule(epochs=1), model, data=data)
    assert row.loss == pytest.approx(np.mean(WEIGHTS * errors**2), rel=1e-5)
