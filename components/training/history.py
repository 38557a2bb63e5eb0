"""Record of each epoch, and selection of the weights to keep."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from qatline.components.artifacts.models import Epoch
from qatline.components.settings import EarlyStoppingSettings
from qatline.components.support.events import Progress
from qatline.components.tasks.task import Outputs, Samples, Task, holds_nan, joined

CLEAR = 1.645
"""Bound in standard errors that a mean of pure noise exceeds in 5 % of all cases (normal
distribution)."""


def is_clear_gain(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether losses fell significantly: one-sided test of paired differences at 5 %.

    Without the test, a network quantized without loss would be replaced by one that is accidentally
    better on a few images.

    Args:
        before: loss of each sample before, ``(samples,)``.
        after: loss of the same samples after, ``(samples,)``.
    """
    gain, bound = gain_and_bound(before, after)
    return gain > bound


def gain_and_bound(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Return the decrease of a mean loss and its significance bound.

    The bound is ``CLEAR`` standard errors of the paired differences; infinite for one sample.
    """
    gain = np.asarray(before, np.float64) - np.asarray(after, np.float64)
    error = gain.std(ddof=1) / np.sqrt(gain.size) if gain.size > 1 else np.inf
    return float(gain.mean()), float(CLEAR * error)


class Trained(Protocol):
    """A model in training, as required by its history."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""

    def inference(self) -> AbstractContextManager[None]:
        """Return a context for repeated calls of ``outputs``."""

    def outputs(self, x: Any) -> Outputs:
        """Return the inference outputs of a batch, or several by name."""

    def losses(self, y: Any, outputs: Outputs) -> np.ndarray:
        """Return the loss of each sample, ``(samples,)``."""

    def get_weights(self) -> Any:
        """Return a copy of all trained state."""

    def set_weights(self, weights: Any) -> None:
        """Restore the result of ``get_weights``."""


class History:
    """Records each epoch, reports every batch and stores the weights to keep.

    The methods ``on_...`` follow Keras's callbacks.

    Args:
        trained: the model in training.
        task: measures the outputs.
        validation: batches of inputs and targets.
        steps: batches of an epoch.
        epochs: number of epochs.
        progress: receives every batch.
        keep_best: see ``qatline.components.training.fitting.fit``.
        samples: samples per epoch and worker, for the reported speed; None for no speed.
        candidate: context that sets the weights to evaluate an epoch by, such as an average; by
            default the trained weights.
        early_stopping: when the training ends early; None for never. Without ``keep_best`` the
            weights of the best epoch are kept then.
    """

    started: float

    def __init__(
        self,
        trained: Trained,
        task: Task,
        validation: Iterable[tuple[Any, Any]],
        steps: int,
        epochs: int,
        progress: Progress,
        *,
        keep_best: bool,
        samples: float | None = None,
        candidate: Callable[[], AbstractContextManager[None]] = nullcontext,
        early_stopping: EarlyStoppingSettings | None = None,
    ) -> None:
        self._early_stopping = early_stopping
        self._candidate, self._samples, self._task = candidate, samples, task
        self.trained, self.validation = trained, validation
        self.steps, self.epochs, self.progress, self.keep_best = steps, epochs, progress, keep_best
        self.rows: list[Epoch] = []
        self.at_first: np.ndarray | None = None
        self.kept: tuple[float, int, Any] | None = None
        self.done = 0

    def start(self) -> None:
        """Record the initial model as epoch 0."""
        self._add(0, None)

    def on_epoch_begin(self, *_: Any) -> None:
        """Start the epoch's clock."""
        self.started = time.monotonic()

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        """Report the progress."""
        self.done += 1
        self.progress.update(
            "training", self.done, self.steps * self.epochs, **self._training(logs)
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch, and add the metrics of the validation part to the logs."""
        with self._candidate():
            self._add(epoch + 1, logs)
        if logs is not None:
            names = ("loss", self._task.primary.name)
            values = {f"val_{name}": self.rows[-1].validation(name) for name in names}
            logs.update({name: value for name, value in values.items() if value is not None})

    @property
    def is_over(self) -> bool:
        """Whether early stopping ends the training after the recorded epochs."""
        stopping = self._early_stopping
        return stopping is not None and self._epochs_without_gain(stopping) >= stopping.patience

    def _epochs_without_gain(self, stopping: EarlyStoppingSettings) -> int:
        """Return the number of records since the last gain; an undefined metric is none."""
        metric = self._task.primary
        sign, best, since = 1.0 if metric.higher_is_better else -1.0, -math.inf, 0
        for row in self.rows:
            value = row.validation(metric.name)
            if value is not None and sign * value - best > stopping.min_delta:
                best, since = sign * value, 0
            else:
                since += 1
        return since

    def get_state(self) -> dict[str, Any]:
        """Return the records and the weights to keep."""
        return {
            "rows": [row.model_dump(exclude_unset=True) for row in self.rows],
            "at_first": self.at_first,
            "kept": self.kept,
            "done": self.done,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of ``get_state``."""
        self.rows = [Epoch(**row) for row in state["rows"]]
        self.at_first, self.done = state["at_first"], state["done"]
        self.kept = None if state["kept"] is None else tuple(state["kept"])

    def _add(self, epoch: int, logs: Any) -> None:
        seconds = time.monotonic() - self.started if epoch else 0.0
        losses, quality = self._validate()
        loss = float(losses.mean())
        row = Epoch(
            epoch=float(epoch),
            **self._training(logs),
            val_loss=loss,
            **quality,
            lr=self.trained.learning_rate,
            seconds=seconds,
            **self._speed(seconds),
            **self._gain(losses),
        )
        self.rows.append(row)
        if self._is_kept(losses):
            self.kept = (loss, len(self.rows) - 1, self.trained.get_weights())

    def _validate(self) -> tuple[np.ndarray, dict[str, float]]:
        """Return each validation sample's loss, and the primary metric of all."""
        losses: list[np.ndarray] = []
        measured: list[Samples] | None = []
        with self.trained.inference():
            for x, y in self.validation:
                outputs, targets = self.trained.outputs(x), np.asarray(y)
                losses.append(self.trained.losses(y, outputs))
                # The metric of an epoch without finite outputs is undefined.
                if measured is not None and not holds_nan(outputs):
                    measured.append(self._task.measure(outputs, targets))
                else:
                    measured = None
        name = self._task.primary.name
        value = self._task.summarize(joined(measured))[name] if measured else math.nan
        quality = {f"val_{name}": value} if math.isfinite(value) else {}
        # In float64, so that a difference of means is the mean of the differences.
        return np.concatenate(losses).astype(np.float64), quality

    def _speed(self, seconds: float) -> dict[str, float]:
        """Return the images per second of each of several workers."""
        if self._samples is None or not seconds:
            return {}
        return {"images_per_second_per_worker": self._samples / seconds}

    def _gain(self, losses: np.ndarray) -> dict[str, float]:
        """Return gain and bound of the test that selects an epoch's weights."""
        if self.at_first is None:
            return {}
        gain, bound = gain_and_bound(self.at_first, losses)
        # JSON has no infinity, the bound of a single sample.
        return {"gain": gain, "gain_bound": bound} if np.isfinite(gain + bound) else {}

    def _is_kept(self, losses: np.ndarray) -> bool:
        """Return whether to keep the weights of the last record."""
        if self.keep_best:
            if self.at_first is None or self.kept is None:
                # The first record is the initial model: later epochs are compared with its losses.
                self.at_first = losses
                return True
            return bool(losses.mean() < self.kept[0]) and is_clear_gain(self.at_first, losses)
        stopping = self._early_stopping
        return stopping is not None and not self._epochs_without_gain(stopping)

    def restore_kept(self) -> None:
        """Restore the weights to keep and mark their record."""
        if self.kept is not None:
            _, index, weights = self.kept
            self.trained.set_weights(weights)
            self.rows = [
                row.model_copy(update={"kept": float(row_index == index)})
                for row_index, row in enumerate(self.rows)
            ]

    def _training(self, logs: Any) -> dict[str, float]:
        """Return the recorded training metrics from the logs."""
        names = ("loss", self._task.primary.name)
        return {name: float(logs[name]) for name in names if name in (logs or {})}
