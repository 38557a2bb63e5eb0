"""Checkpoints of a training, whole or not at all, and how it goes on from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qat_lib.files.whole_files import sweep_unfinished, written_beside
from qatline.components.support.state_file import read_state, write_state
from qatline.components.workers.workers import Workers


class Resumable(Protocol):
    """A part of a training that changes while it runs."""

    def get_state(self) -> Any:
        """Return a copy of all that changes, as ``write_state`` takes it."""

    def set_state(self, state: Any) -> None:
        """Put back what ``get_state`` returned."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The file that keeps a training's state after every so many epochs.

    Attributes:
        folder: of one execution: other settings, data or code mean another folder.
        name: of the training within it; an execution may have several.
        every: epochs between two checkpoints; 0 for none. The last epoch always has one.
        warn: told of a checkpoint that can't be read or written.
    """

    folder: Path
    name: str
    every: int
    warn: Callable[[str], None]

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"{self.name}.state"

    def read(self) -> dict[str, Any] | None:
        """Return the state that was written last; None for none, or a damaged one."""
        sweep_unfinished(self.folder)
        if not self.every or not self.path.is_file():
            return None
        try:
            state = read_state(self.path)
            if state["of"] != self._identity:
                raise ValueError(f"it is of {state['of']}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.warn(f"the checkpoint {self.path} can't be used ({error}); training starts over")
            return None
        return dict(state)

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Whether an epoch, counted from 1, ends with a checkpoint."""
        return bool(self.every) and (epoch % self.every == 0 or epoch == epochs)

    def write(self, state: Mapping[str, Any]) -> bool:
        """Write a state; return False, with a warning, where that fails.

        The training goes on then, and the former checkpoint stays.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with written_beside(self.path) as unfinished:
                write_state(unfinished, {**state, "of": self._identity})
        except OSError as error:
            self.warn(
                f"the checkpoint {self.path} can't be written ({error}). Training goes on; if it "
                "is interrupted, it resumes from the checkpoint before, if any"
            )
            return False
        return True

    @property
    def _identity(self) -> str:
        return f"{self.folder.name}/{self.name}"


class Resumption:
    """A training's parts, and its checkpoint.

    Args:
        checkpoint: where the state is kept; None for nowhere.
        parts: what changes, by name.
        epochs: of the training.
        workers: that train together: worker 0 reads and writes for all.

    Attributes:
        epoch: epochs that the checkpoint has behind it; 0 without one.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        parts: Mapping[str, Resumable],
        epochs: int,
        workers: Workers | None = None,
    ) -> None:
        workers = workers or Workers()
        self._checkpoint = checkpoint if workers.index == 0 else None
        self._parts, self._epochs = parts, epochs
        state = self._checkpoint.read() if self._checkpoint is not None else None
        self._state = workers.share(state)
        self.epoch: int = self._state["epoch"] if self._state is not None else 0

    def restore(self) -> None:
        """Set the parts to the checkpoint's state, if there is one."""
        if self._state is not None:
            for name, part in self._parts.items():
                part.set_state(self._state[name])
        self._state = None  # twice a model's size

    def end_epoch(self, epoch: int) -> None:
        """Write a checkpoint where an epoch, counted from 1, ends with one."""
        checkpoint = self._checkpoint
        if checkpoint is None or not checkpoint.is_due(epoch, self._epochs):
            return
        state = {name: part.get_state() for name, part in self._parts.items()}
        checkpoint.write({**state, "epoch": epoch})


def open_checkpoint(
    folder: Path | None, name: str, every: int, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return a training's checkpoint below a step's folder of them; None without a folder."""
    if folder is None:
        return None
    return Checkpoint(folder=folder, name=name, every=every, warn=warn)
