"""The training loop of Keras models, compared with ``model.fit``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.errors import ConfigError
from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.tasks.keras_losses import CrossEntropy
from qatline.components.training import fitting
from qatline.components.training.array_data import ArrayData
from qatline.components.training.framework import Oscillation
from qatline.components.training.keras_loop import KerasLoop, batch_sizes
from qatline.components.training.keras_recipe import KerasRecipe
from qatline.components.training.recipe import recipe_of

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(150, 8, 8, 3)).astype(np.float32)
Y = (X.mean((1, 2, 3)) > 0).astype(np.int64)
DATA = ArrayData(
    training=Labelled(x=X[:101], targets=Y[:101]),
    validating=Labelled(x=X[101:], targets=Y[101:]),
    task=task_for("classification", classes=["0", "1"]),
)
STEPS = 7
SCORE = CrossEntropy(2, 0.0, False).score


def network(policy: str = "ema", *, quantized: bool = True) -> Any:
    fitting.make_deterministic(3)
    image = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3, name="conv", kernel_regularizer="l2")(image)
    y = keras.layers.BatchNormalization(name="bn")(y)
    y = keras.layers.Dropout(0.2)(keras.layers.ReLU()(y))
    y = keras.layers.GlobalAveragePooling2D()(y)
    model = keras.Model(image, keras.layers.Dense(2, name="logits")(y))
    if not quantized:
        return model
    plan = qat_lib.plan_quantization(model).with_range_policy(policy)
    return qat_lib.apply_plan(model, plan)


class Rows(keras.callbacks.Callback):
    """Records what callbacks are told."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, int, float, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rows.append(("batch", batch, float(logs["loss"]), float(logs["accuracy"])))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.rows.append(("epoch", epoch, float(logs["loss"]), float(logs["accuracy"])))


@keras.saving.register_keras_serializable("test_keras_loop")
class Counted(keras.Model):
    """Counts the calls of its own training step."""

    taken: Any = None

    def train_step(self, data: Any) -> Any:
        self.taken.assign_add(1)
        return super().train_step(data)


def loop_of(model: Any, callbacks: list[Any]) -> Callable[[Any, int], None]:
    loop = KerasLoop(model, SCORE, callbacks)
    return lambda data, epochs: loop.run(data, batch_sizes(101, 16), epochs)


def fit_of(model: Any, callbacks: list[Any]) -> Callable[[Any, int], None]:
    return lambda data, epochs: model.fit(
        data, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks
    )


def compile_with_accuracy(model: Any, schedule: QATSettings) -> None:
    fitting._compile(model, schedule, STEPS, CrossEntropy(2, 0.1, False))
    accuracy = keras.metrics.MeanMetricWrapper(SCORE, name="accuracy")
    model.compile(model.optimizer, model.loss, metrics=[accuracy])


def train(
    model: Any, schedule: QATSettings, way: Callable[..., Any]
) -> tuple[list[np.ndarray], list[Any], Oscillation]:
    """Train on DATA; return variables, what callbacks saw, and what weights did."""
    noted, rows = Oscillation(), Rows()
    recipe = KerasRecipe(model, recipe_of(schedule), lambda: None, noted)
    compile_with_accuracy(model, schedule)
    recipe.prepare(model.optimizer)
    data = DATA.train(schedule.batch_size, shuffle_seed=5, augment=schedule.augment or "none")
    way(model, [*recipe.callbacks(), rows])(data, schedule.epochs)
    recipe.finish()
    return [np.asarray(v.value) for v in model.variables], rows.rows, noted


@pytest.mark.matrix_except("frozen")
@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        ("ema", {"augment": "none"}),
        ("ema", {"augment": "flip_crop", "ema": 0.9, "freeze_batch_norm": 2}),
        ("learned", {"range_rate": 0.3, "freeze_ranges": 2, "freeze_oscillating": 0.02}),
        ("frozen", {"optimizer": "sgd", "weight_decay": 0.01, "freeze_batch_norm": 1}),
    ],
    ids=["plain", "recipe", "learned", "frozen"],
)
def test_loop_gives_the_weights_and_figures_of_fit(policy: str, asked: dict[str, Any]) -> None:
    schedule = QATSettings(epochs=3, batch_size=16, learning_rate=0.01, **asked)
    expected, rows, noted = train(network(policy), schedule, fit_of)
    found, seen, measured = train(network(policy), schedule, loop_of)
    assert seen == rows
    assert measured == noted
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_loop_ends_an_epoch_where_the_data_does() -> None:
    model, rows = network(quantized=False), Rows()
    fitting._compile(model, QATSettings(), 5, CrossEntropy(2, 0.0, False))
    data = tf.data.Dataset.from_tensor_slices((X[:32], Y[:32])).batch(16)
    KerasLoop(model, SCORE, [rows]).run(data, [16] * 5, 1)
    assert [row[:2] for row in rows.rows] == [("batch", 0), ("batch", 1), ("epoch", 0)]


def unnormalized(policy: str) -> Any:
    """Return a network in which a sample's gradient depends on no other sample."""
    fitting.make_deterministic(3)
    image = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3, activation="relu", kernel_regularizer="l2")(image)
    logits = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(y))
    model = keras.Model(image, logits)
    model = qat_lib.apply_plan(model, qat_lib.plan_quantization(model).with_range_policy(policy))
    qat_lib.calibrate(model, X[:32])
    return model


@pytest.mark.matrix_except("learned")
@pytest.mark.parametrize("policy", ["frozen", "learned"])
def test_loop_sums_gradients_over_the_parts_of_a_batch(policy: str) -> None:
    schedule = QATSettings(
        epochs=2, batch_size=20, learning_rate=0.05, optimizer="sgd", accumulate_steps=3
    )
    assert schedule.part_rows == 7  # 20 rows are 7, 7 and 6; the single one left over is one part
    found, traced = [], []
    for part_rows in (None, schedule.part_rows):
        model, rows = unnormalized(policy), Rows()
        fitting._compile(model, schedule, 6, CrossEntropy(2, 0.0, False))
        data = DATA.train(20, shuffle_seed=5, augment="none")
        loop = KerasLoop(model, SCORE, [rows], part_rows=part_rows)
        loop.run(data, batch_sizes(101, 20), 2)
        assert int(model.optimizer.iterations) == 12  # the rate falls with the batches
        found.append([np.asarray(v.value) for v in model.trainable_variables])
        traced.append([row[2:] for row in rows.rows])
    for whole, parts in zip(*found, strict=True):
        np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(traced[1], traced[0], rtol=1e-4)


def test_loop_moves_ranges_with_each_part() -> None:
    schedule = QATSettings(epochs=1, batch_size=20, optimizer="sgd", learning_rate=1e-9)
    model = unnormalized("ema")
    fitting._compile(model, schedule, 1, CrossEntropy(2, 0.0, False))
    (quantizer, *_) = qat_lib.model_quantizers(model).values()
    quantizer.amax = 1.0
    quantizer.unfreeze()
    data = tf.data.Dataset.from_tensors((X[:20], Y[:20]))
    KerasLoop(model, SCORE, [], part_rows=10).run(data, [20], 1)
    expected = np.float32(1.0)
    for part in (X[:10], X[10:20]):
        expected = 0.95 * expected + 0.05 * np.abs(part).max()
    np.testing.assert_allclose(quantizer.amax, expected, rtol=1e-5)


@pytest.mark.matrix
@pytest.mark.parametrize("is_qat", [False, True], ids=["baseline", "qat"])
def test_own_train_step_is_called(is_qat: bool) -> None:
    Counted.taken, found = tf.Variable(0), []
    for own in (False, True):
        model = network(quantized=False)
        model = Counted(model.inputs, model.outputs) if own else model
        settings: Any = TrainingSettings(epochs=2, batch_size=16, learning_rate=0.01)
        if is_qat:
            plan = qat_lib.plan_quantization(model).with_range_policy("learned")
            model = qat_lib.apply_plan(model, plan)
            qat_lib.calibrate(model, X[:32])
            recipe = {"ema": 0.9, "freeze_batch_norm": 2, "freeze_ranges": 2, "range_rate": 0.3}
            settings = QATSettings(epochs=2, batch_size=16, learning_rate=0.01, **recipe)
        rows = fitting.fit(
            *(model, DATA, settings),
            seed=1,
            progress=NullProgress(),
            keep_best=is_qat,
            oscillation=Oscillation() if is_qat else None,
        )
        assert isinstance(model, Counted) is own
        found.append((model.get_weights(), [row.val_loss for row in rows], rows[-1].loss))
    assert int(Counted.taken) == 2 * STEPS
    for value, other in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(value, other)
    assert found[0][1] == found[1][1]
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-5)


def test_own_train_step_takes_whole_batches_and_targets_alone(progress: Any) -> None:
    Counted.taken = tf.Variable(0)
    plain = network(quantized=False)
    model = Counted(plain.inputs, plain.outputs)
    settings = QATSettings(accumulate_steps=2)
    with pytest.raises(ConfigError, match=r"qat.accumulate_steps: expected 1, since Counted has"):
        fitting.fit(model, DATA, settings, seed=1, progress=progress)
    settings = QATSettings(epochs=1, batch_size=64)
    fitting.fit(model, DATA, settings, seed=1, progress=progress, teacher=plain, distillation=0.5)
    assert [text for text in progress.warnings if "uses the targets alone" in text]
