"""Training and prediction of PyTorch networks, on the schedule of the Keras front end.

One config means the same training in both frameworks: reader, augmentation, decay of the learning
rate, order of the data, loss, weight decay and optimizer constants match
``qatline.components.training.fitting``.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qat_lib.torch.folding import folded_weights
from qat_lib.torch.inference import in_inference
from qat_lib.torch.training import range_parameters
from qatline.components.artifacts.models import Epoch
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import Progress
from qatline.components.tasks.task import Outputs, Task
from qatline.components.tasks.torch_losses import TorchLoss
from qatline.components.training.augmentation import NumpyAugmented, open_augment
from qatline.components.training.checkpoints import Checkpoint, Resumable, Resumption
from qatline.components.training.framework import Oscillation, TrainingData
from qatline.components.training.history import History
from qatline.components.training.prepared_data import open_data
from qatline.components.training.rates import rate_at, user_schedule
from qatline.components.training.recipe import losses_of, recipe_of, reestimation_batches
from qatline.components.training.torch_network import TorchNetwork, to_numpy, torch_activation
from qatline.components.training.torch_optimizers import make_optimizer
from qatline.components.training.torch_recipe import TorchTrainingRecipe
from qatline.components.training.user_callbacks import UserCallbacks

CALLED = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_epoch_end",
    "on_train_end",
)
"""Methods of callbacks that are called in PyTorch."""

ADAMW_DECAY = 0.004
"""Keras's default weight decay of AdamW."""


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, PyTorch and ``tf.data``, and make PyTorch's kernels deterministic."""
    import tensorflow as tf

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)
    torch.manual_seed(seed)
    # Some GPU kernels have no deterministic variant: warn instead of failing.
    torch.use_deterministic_algorithms(True, warn_only=True)


def fit_network(
    network: TorchNetwork,
    data: Path | TrainingData,
    schedule: TrainingSettings | QATSettings,
    *,
    seed: int,
    progress: Progress,
    label_smoothing: float = 0.0,
    keep_best: bool = False,
    teacher: TorchNetwork | None = None,
    distillation: float = 0.0,
    oscillation: Oscillation | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[Epoch]:
    """Train a network in place with cosine decay to zero, and leave it in inference mode.

    Arguments and result match ``qatline.components.training.fitting.fit``.
    """
    from qatline.components.data.tf_pipeline import skip_epochs, start_epoch

    source = open_data(data)
    steps = math.ceil(source.samples / schedule.batch_size)
    task = source.task
    loss, plain = losses_of(
        lambda: task.torch_loss(torch_activation(network), label_smoothing), schedule, source
    )
    soft = None
    if teacher is not None and distillation > 0:
        soft = SoftTargets(teacher, task, distillation)
    training = Training(
        network, schedule, steps, loss, soft, plain_loss=plain, score_name=task.primary.name
    )
    user = TorchCallbacks(schedule, network.module)
    recipe = TorchTrainingRecipe(
        network.module, recipe_of(schedule), _plain_batches(network, source, schedule), oscillation
    )
    train, batches = _batches(source, schedule, seed)
    record = History(
        training,
        task,
        NumpyBatches(source.validation(schedule.batch_size)),
        steps,
        schedule.epochs,
        progress,
        keep_best=keep_best,
        candidate=recipe.candidate,
        early_stopping=schedule.early_stopping,
    )
    parts: dict[str, Resumable] = {
        "model": training,
        "recipe": recipe,
        "history": record,
        "callbacks": user,
    }
    saved = Resumption(checkpoint, parts, schedule.epochs)
    if schedule.epochs:
        user.notify("on_train_begin")
    # A resumed training repeats the changes of the module, then sets the state, then skips the
    # batches of finished epochs: the random numbers continue as without the interruption.
    if saved.epoch:
        user.warn_of_lost_state(progress)
        recipe.begin_epoch(saved.epoch - 1)  # repeats freezing before the state is set
        saved.restore()
        skip_epochs(train, saved.epoch)
    elif keep_best:
        record.start()
    for epoch in range(saved.epoch, schedule.epochs):
        if record.is_over or user.stop_training:
            break
        record.on_epoch_begin()
        user.notify("on_epoch_begin", epoch)
        recipe.begin_epoch(epoch)
        figures = training.run_epoch(start_epoch(batches), record, user, recipe.end_step)
        record.on_epoch_end(epoch, figures)
        user.notify("on_epoch_end", epoch, figures)
        saved.end_epoch(epoch + 1)
    if schedule.epochs:
        user.notify("on_train_end")
    recipe.finish()
    record.restore_kept()
    user.finish()
    network.module.eval()
    return record.rows


def _batches(
    source: TrainingData, schedule: TrainingSettings | QATSettings, seed: int
) -> tuple[Any, Iterable[tuple[Any, ...]]]:
    """Return the ``tf.data.Dataset`` of an epoch, and its batches in NumPy."""
    augment = open_augment(schedule, source.task)
    size = schedule.batch_size
    if isinstance(augment, str):
        train = source.train(size, shuffle_seed=seed, augment=augment)
        return train, NumpyBatches(train)
    train = source.train(size, shuffle_seed=seed, augment=lambda *batch: batch)
    return train, NumpyAugmented(train, augment)


def _plain_batches(
    network: TorchNetwork, source: TrainingData, schedule: TrainingSettings | QATSettings
) -> Callable[[], Iterator[Any]]:
    """Return a function that yields unaugmented inputs of the training part."""
    size = schedule.batch_size

    def batches() -> Iterator[Any]:
        data = source.train(size, shuffle_seed=0, augment="none")
        for x, y, *_ in NumpyBatches(data.take(reestimation_batches(source, size))):
            if len(y) > 1 or size == 1:  # as in training
                yield network.tensors(x)

    return batches


def predict_network(network: TorchNetwork, batches: Iterable[Any]) -> Iterator[Outputs]:
    """Yield the inference outputs of each batch of inputs."""
    with in_inference(network.module), torch.no_grad(), folded_weights(network.module):
        for x in batches:
            yield to_numpy(network(network.tensors(x)))


def mean_loss(loss: TorchLoss, targets: Any, outputs: Outputs) -> float:
    """Return the mean loss of a batch's outputs."""
    tensors = _by_name(torch.from_numpy, outputs)
    return float(_per_sample(loss(torch.from_numpy(np.array(targets)), tensors)).mean())


class NumpyBatches:
    """Restartable NumPy batches of a ``tf.data.Dataset``.

    Args:
        dataset: the data set.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._dataset.as_numpy_iterator())


class SoftTargets:
    """Targets blended with a teacher's outputs.

    Args:
        teacher: a trained network with the same outputs.
        task: meaning of the outputs.
        weight: weight of the teacher's outputs, in [0, 1]; the targets have the remaining weight.
    """

    def __init__(self, teacher: TorchNetwork, task: Task, weight: float) -> None:
        self._teacher, self._weight = teacher, weight
        teacher.module.eval()
        self._loss = task.torch_loss(torch_activation(teacher), 0.0)

    def blend(self, x: Any, targets: torch.Tensor) -> Any:
        """Return the blended targets of a batch."""
        with torch.no_grad():
            outputs = self._teacher(x)
            return self._loss.soft_targets(targets, outputs, self._weight)


class Training:
    """A network in training; see ``qatline.components.training.history.Trained``.

    Args:
        network: the network.
        schedule: epochs, optimizer and learning rate.
        steps: batches of an epoch.
        loss: the loss.
        soft: source of soft targets, or None.
        plain_loss: the loss of the validation part; by default ``loss``.
        score_name: name of the score of the loss.
    """

    def __init__(
        self,
        network: TorchNetwork,
        schedule: TrainingSettings | QATSettings,
        steps: int,
        loss: TorchLoss,
        soft: SoftTargets | None = None,
        *,
        plain_loss: TorchLoss | None = None,
        score_name: str = "accuracy",
    ) -> None:
        self._score_name, self._plain_loss = score_name, plain_loss or loss
        self._network, self._loss, self._soft = network, loss, soft
        self._batch_size, self._part_rows = schedule.batch_size, schedule.part_rows
        self._schedule, self._total = schedule, max(1, steps * schedule.epochs)
        self._rate = user_schedule(schedule, self._total)
        default = ADAMW_DECAY if schedule.optimizer == "adamw" else 0.0
        self._decay = schedule.weight_decay or default
        ranges = [p for p in range_parameters(network.module) if p.requires_grad]
        # Identities, since tensors compare element by element.
        known = {id(parameter) for parameter in ranges}
        self._parameters, self._ranges = [], ranges
        for parameter in network.module.parameters():
            if parameter.requires_grad and id(parameter) not in known:
                self._parameters.append(parameter)
        rate = recipe_of(schedule).range_rate
        self._optimizer = make_optimizer(schedule, self._parameters, ranges, rate)
        self._done = 0

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step; by default half a cosine to zero."""
        peak = self._schedule.learning_rate
        if self._rate is not None:
            return rate_at(self._schedule, self._rate, min(self._done, self._total - 1))
        if self._schedule.schedule == "constant":
            return peak
        share = min(self._done / self._total, 1.0)
        return peak * 0.5 * (1.0 + math.cos(math.pi * share))

    def inference(self) -> AbstractContextManager[None]:
        """Return a context for repeated calls of ``outputs``."""
        return folded_weights(self._network.module)

    def outputs(self, x: Any) -> Outputs:
        """Return the inference outputs of a batch."""
        (found,) = predict_network(self._network, [x])
        return found

    def losses(self, y: np.ndarray, outputs: Outputs) -> np.ndarray:
        """Return the loss of each sample."""
        tensors = _by_name(torch.from_numpy, outputs)
        losses: np.ndarray = _per_sample(
            self._plain_loss(torch.from_numpy(np.array(y)), tensors)
        ).numpy()
        return losses

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return a copy of the module's state."""
        weights: dict[str, np.ndarray] = to_arrays(self._network.module.state_dict())
        return weights

    def set_weights(self, weights: dict[str, np.ndarray]) -> None:
        """Set the module's state."""
        self._network.module.load_state_dict(to_tensors(weights))

    def get_state(self) -> dict[str, Any]:
        """Return a copy of weights, optimizer state, number of steps and random state."""
        return {
            "weights": self.get_weights(),
            "optimizer": to_arrays(self._optimizer.state_dict()),
            "done": self._done,
            "random": torch.get_rng_state().numpy().copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of ``get_state``."""
        self.set_weights(state["weights"])
        self._optimizer.load_state_dict(to_tensors(state["optimizer"]))
        self._done = state["done"]
        torch.set_rng_state(torch.from_numpy(state["random"]))

    def run_epoch(
        self,
        batches: Iterable[tuple[Any, ...]],
        record: History,
        user: TorchCallbacks,
        after_step: Callable[[], None],
    ) -> dict[str, float]:
        """Train on every batch once, or until a callback stops; return the epoch's loss and score.

        A last batch of a single sample is skipped.
        """
        seen, loss, score = 0, 0.0, 0.0
        figures: dict[str, float] = {}
        for index, (x, y, *weights) in enumerate(batches):
            user.notify("on_train_batch_begin", index)
            # With one sample, a batch norm may have a single value per channel: PyTorch raises.
            if len(y) > 1 or self._batch_size == 1 or not seen:
                losses, scores = self._step(x, y, *weights)
                after_step()
                seen, loss, score = seen + len(y), loss + losses, score + scores
                figures = {"loss": loss / seen}
                if self._loss.score is not None:
                    figures[self._score_name] = score / seen
            record.on_train_batch_end(index, figures)
            user.notify("on_train_batch_end", index, figures)
            if user.stop_training:
                break
        return figures

    def _step(
        self, x: Any, y: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[float, float]:
        """Train on one batch; return its summed loss and score."""
        self._network.module.zero_grad()
        loss, score = 0.0, 0.0
        parts = _parts(len(y), self._part_rows)
        for part in parts:
            inputs = _by_name(itemgetter(part), x)
            own = None if weights is None else weights[part]
            lost, scored = self._add_gradients(inputs, y[part], own, len(y))
            loss, score = loss + lost, score + scored
        for each in self._ranges if len(parts) > 1 else ():
            # LSQ scales by the root of the number of values: parts have fewer values than a batch.
            if each.grad is not None:
                each.grad.div_(math.sqrt(len(parts)))
        self._update()
        return loss, score

    def _add_gradients(
        self, x: Any, y: np.ndarray, weights: np.ndarray | None, rows: int
    ) -> tuple[float, float]:
        """Add the gradients of these rows, weighted for a batch of ``rows``."""
        inputs = self._network.tensors(x)
        targets = torch.from_numpy(np.array(y)).to(self._network.device)
        if self._soft is not None:
            targets = self._soft.blend(inputs, targets)
        outputs = self._network(inputs)
        losses = _per_sample(self._loss(targets, outputs))
        if weights is not None:
            losses = losses * torch.from_numpy(np.array(weights)).to(losses)
        (losses.mean() * (len(y) / rows)).backward()
        score = 0.0 if self._loss.score is None else float(self._loss.score(targets, outputs).sum())
        return float(losses.detach().sum()), score

    def _update(self) -> None:
        """Decay the weights and take a step at the current learning rate."""
        rate = self.learning_rate
        with torch.no_grad():
            for parameter in self._parameters if self._decay else ():
                if parameter.requires_grad:  # frozen parameters do not decay
                    # Decoupled decay before the step, as in Keras.
                    parameter.mul_(1.0 - rate * self._decay)
        self._optimizer.step_at(rate)
        self._done += 1


class TorchCallbacks(UserCallbacks):
    """Callbacks of a PyTorch training: objects with methods of Keras's callbacks.

    All methods are optional. The module is the attribute ``model`` of each callback, and
    ``model.stop_training = True`` ends the training, as in Keras after the batch or epoch.

    Args:
        schedule: the settings.
        module: the module in training.

    Raises:
        ConfigError: a callback cannot be created, or has no such method.
    """

    def __init__(self, schedule: TrainingSettings | QATSettings, module: torch.nn.Module) -> None:
        super().__init__(schedule)
        self.require(
            lambda each: any(hasattr(each, method) for method in CALLED),
            f"an object with {', '.join(CALLED)}",
        )
        self.guard()
        self._module: Any = module
        module.stop_training = False
        for each in self.objects:
            if hasattr(each, "set_model"):
                each.set_model(module)
            else:
                each.model = module

    @property
    def stop_training(self) -> bool:
        """Whether a callback ends the training."""
        return bool(self._module.stop_training)

    def notify(self, method: str, *arguments: Any) -> None:
        """Call a method of all callbacks that have it."""
        for each in self.objects:
            if hasattr(each, method):
                getattr(each, method)(*arguments)

    def finish(self) -> None:
        """Remove the switch from the module."""
        del self._module.stop_training


def _by_name(function: Callable[[Any], Any], values: Any) -> Any:
    """Apply a function to one value, or to each of several by name."""
    if isinstance(values, Mapping):
        return {name: function(each) for name, each in values.items()}
    return function(values)


def _per_sample(losses: torch.Tensor) -> torch.Tensor:
    """Return the mean over all axes but the first."""
    return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses


def _parts(rows: int, size: int | None) -> list[slice]:
    """Return the parts of a batch; a single remaining row joins the previous part."""
    ends = list(range(size, rows, size)) if size is not None else []
    if ends and size != 1 and rows - ends[-1] == 1:
        ends.pop()
    return [slice(*part) for part in itertools.pairwise([0, *ends, rows])]


def to_arrays(state: Any) -> Any:
    """Return a copy of a state with arrays in place of its tensors.

    NumPy has no bfloat16: such tensors become float32, without loss.
    """
    if isinstance(state, torch.Tensor):
        kept = state.float() if state.dtype == torch.bfloat16 else state
        return kept.detach().cpu().clone().numpy()
    if isinstance(state, dict):
        return {name: to_arrays(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [to_arrays(value) for value in state]
    return state


def to_tensors(state: Any) -> Any:
    """Return a state with tensors in place of the arrays of ``to_arrays``."""
    if isinstance(state, dict):
        return {name: to_tensors(value) for name, value in state.items()}
    if isinstance(state, list):
        return [to_tensors(value) for value in state]
    return torch.from_numpy(state) if hasattr(state, "__array__") else state
