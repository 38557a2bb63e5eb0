"""Atomic checkpoints of a training, and resumption from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qat_lib.files.state_file import read_state, write_state
from qat_lib.files.whole_files import sweep_unfinished, written_beside
from qatline.components.workers.workers import Workers


class Resumable(Protocol):
    """Part of a training with mutable state."""

    def get_state(self) -> Any:
        """Return a copy of the mutable state in the format of ``write_state``."""

    def set_state(self, state: Any) -> None:
        """Restore the result of ``get_state``."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """File with a training's state, written every few epochs.

    Attributes:
        folder: folder of one execution; other settings, data or code use another folder.
        name: name of the training; an execution may have several.
        every: epochs between two checkpoints; 0 for none. The last epoch always has one.
        warn: receives a warning if a checkpoint cannot be read or written.
    """

    folder: Path
    name: str
    every: int
    warn: Callable[[str], None]

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / f"{self.name}.state"

    def read(self) -> dict[str, Any] | None:
        """Return the last written state, or None if it is missing or damaged."""
        sweep_unfinished(self.folder, alone=True)
        if not self.every or not self.path.is_file():
            return None
        try:
            state = read_state(self.path)
            # The file may have been copied from another execution.
            if state["of"] != self._identity:
                raise ValueError(f"it is of {state['of']}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.warn(f"the checkpoint {self.path} can't be used ({error}); training starts over")
            return None
        return dict(state)

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Return whether an epoch, counted from 1, ends with a checkpoint."""
        return bool(self.every) and (epoch % self.every == 0 or epoch == epochs)

    def write(self, state: Mapping[str, Any]) -> bool:
        """Write a state; on failure, warn and return False.

        A failed write keeps the previous checkpoint, and training continues.
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
    """Parts of a training and its checkpoint.

    Args:
        checkpoint: checkpoint of the training; None to store no state.
        parts: mutable parts by name.
        epochs: number of epochs.
        workers: workers of the training; worker 0 reads and writes for all.

    Attributes:
        epoch: epochs completed by the checkpoint; 0 without one.
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
        # All workers must resume at the same epoch; the others may not see the folder of worker 0.
        self._state = workers.share(state)
        self.epoch: int = self._state["epoch"] if self._state is not None else 0

    def restore(self) -> None:
        """Restore the parts from the checkpoint, if any."""
        if self._state is not None:
            for name, part in self._parts.items():
                part.set_state(self._state[name])
        self._state = None  # frees memory of twice the model's size

    def end_epoch(self, epoch: int) -> None:
        """Write a checkpoint if an epoch, counted from 1, ends with one."""
        checkpoint = self._checkpoint
        if checkpoint is None or not checkpoint.is_due(epoch, self._epochs):
            return
        state = {name: part.get_state() for name, part in self._parts.items()}
        checkpoint.write({**state, "epoch": epoch})


def open_checkpoint(
    folder: Path | None, name: str, every: int, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return a training's checkpoint in a step's checkpoint folder; None without a folder."""
    if folder is None:
        return None
    return Checkpoint(folder=folder, name=name, every=every, warn=warn)
