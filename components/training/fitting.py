"""Training and prediction of Keras models.

Training is seeded and deterministic, reports progress and records a history.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import ConfigError
from qat_lib.keras.folding import folded_weights
from qatline.components.artifacts.models import Epoch
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import Progress
from qatline.components.tasks.keras_losses import KerasLoss
from qatline.components.tasks.task import Outputs
from qatline.components.training.augmentation import open_augment
from qatline.components.training.checkpoints import Checkpoint, Resumable, Resumption
from qatline.components.training.framework import Oscillation, TrainingData
from qatline.components.training.history import History
from qatline.components.training.keras_loop import (
    KerasLoop,
    batch_sizes,
    has_own_step,
    named_outputs,
)
from qatline.components.training.keras_recipe import KerasRecipe, optimizer_of
from qatline.components.training.model_source import last_activation
from qatline.components.training.prepared_data import open_data
from qatline.components.training.recipe import losses_of, recipe_of, reestimation_batches
from qatline.components.training.user_callbacks import UserCallbacks
from qatline.components.workers.workers import Workers, current_workers


def make_deterministic(seed: int) -> None:
    """Seed Python, NumPy and TensorFlow, and make TensorFlow's kernels deterministic."""
    keras.utils.set_random_seed(seed)
    tf.config.experimental.enable_op_determinism()


def fit(
    model: Any,
    data: Path | TrainingData,
    schedule: TrainingSettings | QATSettings,
    *,
    seed: int,
    progress: Progress,
    label_smoothing: float = 0.0,
    keep_best: bool = False,
    teacher: Any = None,
    distillation: float = 0.0,
    oscillation: Oscillation | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[Epoch]:
    """Train a model in place with cosine decay to zero, and leave it uncompiled.

    Args:
        model: a model that fits the task of the data; its last layer decides between logits and
            probabilities.
        data: directory of the prepared data, or another source of batches.
        schedule: epochs, batch size, optimizer and learning rate.
        seed: seed of shuffling and augmentation.
        progress: receives every batch.
        label_smoothing: in [0, 1).
        keep_best: whether to restore the weights of the epoch with the lowest validation loss. The
            initial weights are restored if no epoch is significantly better
            (``history.is_clear_gain``).
        teacher: trained model with the same outputs, which serve as soft targets
            (Hinton et al. 2015, https://arxiv.org/abs/1503.02531, at temperature 1), or None.
        distillation: weight of the soft targets, in [0, 1]; the labels have the remaining weight.
        oscillation: receives the shares of oscillating weights, or None.
        checkpoint: checkpoint to write, and to resume from if it exists; None for none.

    Returns:
        One record per epoch. With ``keep_best`` the first record is epoch 0, the initial model, and
        ``kept`` marks the record of the final weights.
    """
    source = open_data(data)
    steps = math.ceil(source.samples / schedule.batch_size)
    recipe = KerasRecipe(model, recipe_of(schedule), _plain_batches(source, schedule), oscillation)
    task = source.task
    loss, plain = losses_of(
        lambda: task.keras_loss(last_activation(model), label_smoothing), schedule, source
    )
    _compile(model, schedule, steps, loss)
    recipe.prepare(model.optimizer)
    workers = current_workers()
    if has_own_step(model):
        _check_own_step(model, schedule, workers)
        if teacher is not None and distillation > 0:
            progress.warn(
                f"{type(model).__name__} has its own train_step, which decides the loss: "
                "fine-tuning uses the targets alone"
            )
            teacher = None
    user = _user_callbacks(schedule)
    train = _batches(source, schedule, seed, workers)
    validation = source.validation(schedule.batch_size)
    if teacher is not None and distillation > 0:
        train = train.map(_soft_targets(teacher, source, distillation))
    trained = CompiledModel(model, TaskLoss(plain))
    record = History(
        trained,
        task,
        validation,
        steps,
        schedule.epochs,
        progress,
        keep_best=keep_best,
        samples=None if workers.alone else source.samples / workers.count,
        candidate=recipe.candidate,
        early_stopping=schedule.early_stopping,
    )
    parts: dict[str, Resumable] = {
        "model": trained,
        "recipe": recipe,
        "history": record,
        "callbacks": user,
    }
    saved = Resumption(checkpoint, parts, schedule.epochs, workers)
    if saved.epoch:
        user.warn_of_lost_state(progress)
    # Workers build their models independently: start all from the weights of worker 0.
    trained.set_weights(workers.share(trained.get_weights()))
    if keep_best and not saved.epoch:
        record.start()
    if schedule.epochs:
        told = keras.callbacks.LambdaCallback(
            on_epoch_begin=record.on_epoch_begin,
            on_epoch_end=record.on_epoch_end,
            on_train_batch_end=record.on_train_batch_end,
        )
        rows = schedule.part_rows
        loop = KerasLoop(
            model,
            loss.score,
            [*recipe.callbacks(), told],
            workers,
            part_rows=rows,
            score_name=task.primary.name,
            user_callbacks=user.objects,
            is_over=lambda: record.is_over,
        )
        sizes = batch_sizes(source.samples, schedule.batch_size)
        loop.run(train, sizes, schedule.epochs, saved)
        recipe.finish()
    record.restore_kept()
    # A compiled model would be saved with the optimizer's variables and a private loss class,
    # which only this package can load.
    model.optimizer, model.compiled, model.train_function = None, False, None
    return record.rows


def _user_callbacks(schedule: TrainingSettings | QATSettings) -> UserCallbacks:
    """Return the user's callbacks.

    Raises:
        ConfigError: one cannot be created, or is no callback of Keras.
    """
    found = UserCallbacks(schedule)
    found.require(
        lambda each: isinstance(each, keras.callbacks.Callback), "a keras.callbacks.Callback"
    )
    found.guard(keras.callbacks.Callback)
    return found


def _check_own_step(model: Any, schedule: TrainingSettings | QATSettings, workers: Workers) -> None:
    """Reject settings that a model's own ``train_step`` cannot follow.

    Raises:
        ConfigError: batches would be split.
    """
    for key, value in (("accumulate_steps", schedule.accumulate_steps), ("workers", workers.count)):
        if value != 1:
            raise ConfigError(
                f"{schedule.section}.{key}: expected 1, since {type(model).__name__} has its own "
                f"train_step, which takes whole batches; received {value}"
            )


def _batches(
    source: TrainingData, schedule: TrainingSettings | QATSettings, seed: int, workers: Workers
) -> Any:
    """Return the batches of an epoch, or this worker's share of each batch."""
    return source.train(
        schedule.batch_size,
        shuffle_seed=seed,
        augment=open_augment(schedule, source.task),
        worker=(workers.index, workers.count),
    )


def _plain_batches(
    source: TrainingData, schedule: TrainingSettings | QATSettings
) -> Callable[[], Any]:
    """Return a function that returns unaugmented batches of the training part."""
    size = schedule.batch_size

    def batches() -> Any:
        data = source.train(size, shuffle_seed=0, augment="none")
        return data.take(reestimation_batches(source, size))

    return batches


class CompiledModel:
    """A compiled Keras model in training; see ``qatline.components.training.history.Trained``.

    Args:
        model: the model.
        loss: the loss of the validation part, one value per sample; by default that of the model.
    """

    def __init__(self, model: Any, loss: Any = None) -> None:
        self._model, self._loss = model, loss or model.loss

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._model.optimizer.learning_rate)

    def inference(self) -> AbstractContextManager[None]:
        """Return a context for repeated calls of ``outputs``."""
        return folded_weights(self._model)

    def outputs(self, x: Any) -> Outputs:
        """Return the inference outputs of a batch."""
        return _infer(self._model, x)

    def losses(self, y: Any, outputs: Outputs) -> np.ndarray:
        """Return the loss of each sample."""
        return np.asarray(keras.ops.convert_to_numpy(self._loss.call(y, outputs)))

    def get_state(self) -> dict[str, Any]:
        """Return all variables of the model, including random seeds, and of the optimizer."""
        found: dict[str, list[np.ndarray]] = {}
        for name, variables in self._variables().items():
            found[name] = [np.array(keras.ops.convert_to_numpy(each)) for each in variables]
        return found

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of ``get_state``."""
        for name, variables in self._variables().items():
            for variable, value in zip(variables, state[name], strict=True):
                variable.assign(value)

    def _variables(self) -> dict[str, list[Any]]:
        # Metrics are not part of a training's state.
        measured = {id(variable) for variable in self._model.metrics_variables}
        own = [each for each in self._model.variables if id(each) not in measured]
        return {"model": own, "optimizer": list(self._model.optimizer.variables)}

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of all weights."""
        weights: list[np.ndarray] = self._model.get_weights()
        return weights

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Set all weights."""
        self._model.set_weights(weights)


def predict(model: Any, batches: Iterable[Any]) -> Iterator[Outputs]:
    """Yield the inference outputs of each batch of inputs."""
    with folded_weights(model):
        for x in batches:
            yield _infer(model, x)


# Inference of models: tracing a quantized one takes a second, so it is traced once in a process.
_COMPILED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _infer(model: Any, x: Any) -> Outputs:
    """Return the inference outputs of a batch as arrays."""
    if model not in _COMPILED:
        # A strong reference in the value would keep the key alive.
        found: Any = weakref.ref(model)
        _COMPILED[model] = tf.function(
            lambda x: named_outputs(found(), found()(x, training=False)), autograph=False
        )
    tensors = keras.tree.map_structure(tf.convert_to_tensor, x)
    signature = tensors
    if all(tensor.shape[0] is None for tensor in getattr(model, "inputs", None) or ()):
        # One trace for batches of all sizes: the last one of a part is smaller.
        signature = keras.tree.map_structure(
            lambda tensor: tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype), tensors
        )
    outputs = _COMPILED[model].get_concrete_function(signature)(tensors)
    converted: Outputs = keras.tree.map_structure(lambda y: y.numpy(), outputs)
    return converted


def _compile(
    model: Any,
    schedule: TrainingSettings | QATSettings,
    steps: int,
    loss: KerasLoss,
) -> None:
    optimizer = optimizer_of(schedule, steps * schedule.epochs)
    model.compile(optimizer, loss=TaskLoss(loss))


class TaskLoss(keras.losses.Loss):
    """A task's loss as a loss of Keras: one value per sample.

    Args:
        loss: the task's loss.
    """

    def __init__(self, loss: KerasLoss) -> None:
        super().__init__(name="loss")
        self._loss = loss

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each sample, the mean over any further axes."""
        losses = self._loss(y_true, y_pred)
        axes = tuple(range(1, len(losses.shape)))
        return keras.ops.mean(losses, axis=axes) if axes else losses


def _soft_targets(teacher: Any, source: TrainingData, weight: float) -> Any:
    """Return a function that blends the targets of a batch with the teacher's outputs."""
    loss = source.task.keras_loss(last_activation(teacher), 0.0)

    def blend(x: Any, y: Any, *weights: Any) -> tuple[Any, ...]:
        # In inference mode: a teacher in training mode would update its statistics.
        outputs = named_outputs(teacher, teacher(x, training=False))
        return x, loss.soft_targets(y, outputs, weight), *weights

    return blend
