"""Checkpoints of a training: bit for bit as uninterrupted, damage, a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qatline.components.training import checkpoints
from qatline.components.training.checkpoints import Checkpoint, Resumption, open_checkpoint
from tests.components.training import interrupted


class Part:
    """A part with one number."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def get_state(self) -> Any:
        return {"value": np.float32(self.value).reshape(())}

    def set_state(self, state: Any) -> None:
        self.value = float(state["value"])


def checkpoint(folder: Path, told: list[str], every: int = 2) -> Checkpoint:
    return Checkpoint(folder=folder / "key", name="qat", every=every, warn=told.append)


def test_checkpoint_is_due_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    every_two = checkpoint(tmp_path, [])
    assert [epoch for epoch in range(1, 6) if every_two.is_due(epoch, 5)] == [2, 4, 5]
    assert not any(replace(every_two, every=0).is_due(epoch, 5) for epoch in range(1, 6))


def test_resumption_restores_the_last_state(tmp_path: Path) -> None:
    told: list[str] = []
    kept = checkpoint(tmp_path, told)
    part = Part()
    first = Resumption(kept, {"part": part}, 5)
    assert first.epoch == 0
    for epoch in range(1, 4):
        part.value = epoch / 4
        first.end_epoch(epoch)
    other = Part()
    second = Resumption(kept, {"part": other}, 5)
    second.restore()
    assert (second.epoch, other.value, told) == (2, 0.5, [])
    assert Resumption(replace(kept, every=0), {"part": other}, 5).epoch == 0


def test_resumption_without_a_checkpoint_begins_at_the_start(tmp_path: Path) -> None:
    assert open_checkpoint(None, "qat", 1, print) is None
    assert Resumption(None, {}, 3).epoch == 0
    kept = open_checkpoint(tmp_path, "qat", 3, print)
    assert kept is not None
    assert (kept.path, kept.every) == (tmp_path / "qat.state", 3)


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "text"])
def test_checkpoint_that_is_damaged_or_foreign_is_not_taken(tmp_path: Path, damage: str) -> None:
    told: list[str] = []
    kept = checkpoint(tmp_path, told, every=1)
    Resumption(kept, {"part": Part(0.1)}, 5).end_epoch(1)
    content = kept.path.read_bytes()
    if damage == "cut":
        kept.path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        place = content.index(np.float32(0.1).tobytes())
        kept.path.write_bytes(content[:place] + b"\x00" + content[place + 1 :])
    elif damage == "text":
        kept.path.write_text("no checkpoint")
    else:
        other = replace(kept, folder=tmp_path / "another")
        other.folder.mkdir()
        shutil.copy(kept.path, other.path)
        kept = other
    assert Resumption(kept, {"part": Part()}, 5).epoch == 0
    (message,) = told
    assert str(kept.path) in message
    assert "training starts over" in message


def test_checkpoint_on_a_full_disk_leaves_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    kept = checkpoint(tmp_path, told, every=1)
    part = Part(1.0)
    Resumption(kept, {"part": part}, 5).end_epoch(1)

    def full(path: Path, _state: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_state", full)
        Resumption(kept, {"part": Part(2.0)}, 5).end_epoch(2)
    assert "Training goes on" in told[0]
    other = Part()
    saved = Resumption(kept, {"part": other}, 5)
    saved.restore()
    assert (saved.epoch, other.value, len(told)) == (1, 1.0, 1)
    assert [path.name for path in kept.folder.iterdir()] == ["qat.state"]


def trained(folder: Path, case: str, *, kill: int = 0) -> int:
    """Train a case in a process of its own, which may kill itself in the middle of an epoch."""
    command = [sys.executable, "-m", interrupted.__name__, case, str(folder), str(kill)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[3]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


SLOW = ("baseline", "recipe", "parts", "torch", "torch-parts", "torch-learned")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in interrupted.CASES],
)
def test_training_killed_in_an_epoch_ends_as_uninterrupted(tmp_path: Path, case: str) -> None:
    if case.startswith("torch"):
        pytest.importorskip("torch")
    assert trained(tmp_path, case, kill=3) == -signal.SIGKILL
    assert not (tmp_path / "kept.npz").exists()
    assert trained(tmp_path, case) == 0
    kept, whole = (np.load(tmp_path / f"{name}.npz") for name in ("kept", "whole"))
    assert int(kept["resumed"]) == 2
    assert set(kept.files) == {*whole.files, "resumed"}
    for name in whole.files:
        np.testing.assert_array_equal(kept[name], whole[name], err_msg=name)
