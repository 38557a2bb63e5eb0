"""Losses, metrics, optimizers and soft targets of a training, and what is left of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.tasks import task_for
from qatline.components.tasks.keras_losses import CrossEntropy
from qatline.components.training import fitting, prepared_data
from qatline.components.training.fitting import fit

THREE = task_for("classification", classes=["a", "b", "c"])
TOP1 = CrossEntropy(3, 0.0, False).score
LOGITS = np.float32([[2, 0, -1], [0, 1, 3], [1, 0, 0]])


def network(activation: str | None = None, width: int = 3) -> keras.Model:
    x = keras.Input((2,))
    return keras.Model(x, keras.layers.Dense(width, activation=activation, use_bias=False)(x))


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -(targets * np.log(shifted)).sum(axis=1)


@pytest.mark.parametrize("labels", [[0, 1, 2], [[0], [1], [2]]])
def test_loss_is_the_cross_entropy_of_each_sample(labels: Any) -> None:
    found = CrossEntropy(3, 0.0, False)(tf.constant(labels), tf.constant(LOGITS))
    np.testing.assert_allclose(found, cross_entropy(LOGITS, np.eye(3)), rtol=1e-5)
    of_probabilities = CrossEntropy(3, 0.0, True)(tf.constant(labels), tf.nn.softmax(LOGITS))
    np.testing.assert_allclose(of_probabilities, found, rtol=1e-5)
    smooth = CrossEntropy(3, 0.3, False)(tf.constant(labels), tf.constant(LOGITS))
    np.testing.assert_allclose(smooth, cross_entropy(LOGITS, 0.7 * np.eye(3) + 0.1), rtol=1e-5)


def test_loss_takes_soft_targets_as_they_are() -> None:
    soft = np.float32([[0.2, 0.3, 0.5], [1, 0, 0], [0, 0.5, 0.5]])
    found = CrossEntropy(3, 0.0, False)(tf.constant(soft), tf.constant(LOGITS))
    np.testing.assert_allclose(found, cross_entropy(LOGITS, soft), rtol=1e-5)


def test_loss_takes_labels_of_two_classes() -> None:
    """One label a row is no pair of soft targets, whatever the number of classes."""
    logits = LOGITS[:, :2]
    found = CrossEntropy(2, 0.0, False)(tf.constant([[0], [1], [1]]), tf.constant(logits))
    np.testing.assert_allclose(found, cross_entropy(logits, np.eye(2)[[0, 1, 1]]), rtol=1e-5)


@pytest.mark.parametrize(
    "y",
    [[0, 1, 0], [[0], [1], [0]], [[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.6, 0.4, 0]]],
    ids=["flat", "column", "soft"],
)
def test_is_top1_compares_the_largest(y: Any) -> None:
    hits = TOP1(tf.constant(y), tf.constant(LOGITS)).numpy()
    assert hits.tolist() == [1, 0, 1]
    assert hits.dtype == np.float32


def test_is_soft_sees_targets_of_many_samples() -> None:
    logits = np.float32([[2, 0, -1], [0, 1, 3], [1, 0, 0], [0, 5, 1]])
    soft = np.float32([[0.1, 0.2, 0.7], [0, 0, 1], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3]])
    assert TOP1(tf.constant(soft), tf.constant(logits)).numpy().tolist() == [0, 1, 1, 0]
    assert TOP1(tf.constant([[0], [2], [1], [1]]), tf.constant(logits)).numpy().tolist() == [
        1,
        1,
        0,
        1,
    ]
    found = CrossEntropy(3, 0.0, False)(tf.constant(soft), tf.constant(logits))
    np.testing.assert_allclose(found, cross_entropy(logits, soft), rtol=1e-5)
    found = CrossEntropy(3, 0.0, False)(tf.constant([0, 2, 1, 1]), tf.constant(logits))
    np.testing.assert_allclose(found, cross_entropy(logits, np.eye(3)[[0, 2, 1, 1]]), rtol=1e-5)


def test_is_top1_takes_as_many_labels_as_classes() -> None:
    """Three labels of three classes are no soft targets."""
    assert TOP1(tf.constant([2, 2, 2]), tf.constant(LOGITS)).numpy().tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("decay", [0.0, 0.25])
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_compile_makes_the_optimizer_that_is_asked_for(name: Any, decay: float) -> None:
    model = network()
    schedule = TrainingSettings(optimizer=name, weight_decay=decay, learning_rate=0.5, epochs=4)
    fitting._compile(model, schedule, 5, CrossEntropy(3, 0.1, False))
    kinds = {
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "sgd": keras.optimizers.SGD,
    }
    assert type(model.optimizer) is kinds[name]
    default = kinds[name]().weight_decay
    assert model.optimizer.weight_decay == (decay or default)
    if name == "sgd":
        assert (model.optimizer.momentum, model.optimizer.nesterov) == (0.9, True)
    rate = model.optimizer._learning_rate
    assert [float(rate(step)) for step in (0, 10, 20)] == pytest.approx([0.5, 0.25, 0.0])
    found = model.loss.call(tf.constant([0, 1, 2]), tf.constant(LOGITS))
    np.testing.assert_allclose(found, cross_entropy(LOGITS, 0.9 * np.eye(3) + 0.1 / 3), rtol=1e-5)


def test_compile_takes_a_schedule_of_no_epochs() -> None:
    model = network("softmax")
    fitting._compile(model, TrainingSettings(epochs=0), 5, TOP1.__self__)
    assert model.optimizer._learning_rate.decay_steps == 1


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_soft_targets_blend_labels_and_the_teacher(activation: str | None) -> None:
    seen = []
    teacher = network(activation)

    class Teacher(keras.layers.Layer):
        """Passes on, and tells whether it trains."""

        def call(self, x: Any, training: bool | None = None) -> Any:
            seen.append(training)
            return x

    x = keras.Input((2,))
    watched = keras.Model(
        x, keras.layers.Dense(3, activation=activation, use_bias=False)(Teacher()(x))
    )
    watched.set_weights(teacher.get_weights())
    seen.clear()
    images = np.float32([[1, 2], [3, -1]])
    same, targets = fitting._soft_targets(watched, SimpleNamespace(task=THREE), 0.25)(
        tf.constant(images), tf.constant([0, 2])
    )
    outputs = teacher(images)
    soft = outputs if activation else tf.nn.softmax(outputs)
    np.testing.assert_allclose(targets, 0.75 * np.eye(3)[[0, 2]] + 0.25 * soft, rtol=1e-5)
    np.testing.assert_array_equal(same, images)
    assert seen == [False]


class Data:
    """A data set of five samples of two classes in place of one on disk, and who asked for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.x = np.float32([[1, 0], [0, 1], [2, 0], [0, 2], [3, 1]])
        self.y = np.array([0, 1, 0, 1, 0])
        info = replace(task_for("classification", classes=["a", "b"]).data, splits={"train": 5})
        monkeypatch.setattr(
            prepared_data, "Dataset", lambda dataset: SimpleNamespace(info=lambda: info)
        )
        monkeypatch.setattr(prepared_data, "tf_dataset", self.batches)

    def batches(self, dataset: Path, split: str, size: int, **options: Any) -> Any:
        self.asked.append((split, size, options))
        return tf.data.Dataset.from_tensor_slices((self.x, self.y)).batch(size)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Data:
    return Data(monkeypatch)


def train(model: keras.Model, progress: Any, **options: Any) -> list[dict[str, float]]:
    settings = QATSettings(
        epochs=options.pop("epochs", 2), batch_size=2, learning_rate=0.1, augment="none"
    )
    return fit(model, Path("/data"), settings, seed=3, progress=progress, **options)


def test_fit_trains_every_batch_of_every_epoch(
    data: Data, progress: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network(width=2)
    before = model.get_weights()[0]
    rows = train(model, progress)
    assert [row.epoch for row in rows] == [1, 2]
    assert progress.updates == [("training", done, 6) for done in range(1, 7)]
    # The labels of mirrored images are those of the images.
    assert data.asked[0][2].pop("mirrored")([0, 1]) == [0, 1]
    assert data.asked == [
        ("train", 2, {"shuffle_seed": 3, "augment": "none", "worker": (0, 1)}),
        ("validation", 2, {}),
    ]
    assert np.any(model.get_weights()[0] != before)
    assert (model.optimizer, model.compiled) == (None, False)
    assert not any("kept" in row for row in rows)
    assert capsys.readouterr().out == ""


def test_fit_of_no_epochs_leaves_the_model_as_it_came(data: Data, progress: Any) -> None:
    model = network(width=2)
    before = model.get_weights()[0]
    assert train(model, progress, epochs=0) == []
    (row,) = train(model, progress, epochs=0, keep_best=True)
    assert (row.epoch, row.kept) == (0, 1)
    np.testing.assert_array_equal(model.get_weights()[0], before)


@pytest.mark.parametrize(("weight", "asked"), [(0.0, 0), (0.5, 1)])
def test_fit_asks_the_teacher_only_where_it_counts(
    data: Data, progress: Any, monkeypatch: pytest.MonkeyPatch, weight: float, asked: int
) -> None:
    calls = []

    def soft_targets(*arguments: Any) -> Any:
        calls.append(arguments)
        return lambda x, y: (x, tf.one_hot(y, 2))

    monkeypatch.setattr(fitting, "_soft_targets", soft_targets)
    train(network(width=2), progress, epochs=1, teacher="teacher", distillation=weight)
    assert [(teacher, share) for teacher, _, share in calls] == [("teacher", weight)] * asked
    train(network(width=2), progress, epochs=0, distillation=0.5)
    assert len(calls) == asked


def test_fit_smooths_and_distils_nothing_unless_asked() -> None:
    defaults = fit.__kwdefaults__
    assert defaults == {
        "label_smoothing": 0.0,
        "keep_best": False,
        "teacher": None,
        "distillation": 0.0,
        "oscillation": None,
        "checkpoint": None,
    }


def test_predict_gives_the_outputs_of_inference_in_order() -> None:
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Dropout(0.9)(x))
    batches = [LOGITS[:2, :2], LOGITS[2:, :2]]
    np.testing.assert_array_equal(np.concatenate([*fitting.predict(model, batches)]), LOGITS[:, :2])


@pytest.mark.parametrize(("size", "traces"), [(None, 1), (2, 2)])
def test_a_model_is_traced_once_for_batches_of_all_sizes(size: int | None, traces: int) -> None:
    traced = []

    class Counted(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            traced.append(x.shape)
            return 2 * x

    x = keras.Input(batch_shape=(size, 2))
    model = keras.Model(x, Counted()(x))
    traced.clear()
    for batches in ([LOGITS[:2, :2], LOGITS[2:, :2]], [LOGITS[1:, :2]]):
        found = np.concatenate([*fitting.predict(model, batches)])
        np.testing.assert_array_equal(found, 2 * np.concatenate(batches))
    assert len(traced) == traces
