"""The folder of an execution's checkpoints."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from qatline.components.store.checkpoint_folder import (
    CHECKPOINTS_VARIABLE,
    KEPT_DAYS,
    checkpoint_folder,
)
from qatline.components.store.step_store import StepStore


@pytest.fixture(autouse=True)
def no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHECKPOINTS_VARIABLE, raising=False)


def interrupt(key: str, store: StepStore) -> Path:
    """Begin an execution that writes a checkpoint and is interrupted; return its folder."""
    with suppress(KeyboardInterrupt), checkpoint_folder("qat", key, store) as folder:
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        raise KeyboardInterrupt
    return folder


def test_checkpoint_folder_is_removed_after_success_alone(tmp_path: Path) -> None:
    store = StepStore(tmp_path)
    folder = interrupt("k", store)
    assert folder.is_dir()
    with checkpoint_folder("qat", "k", store) as again:
        assert again == folder
    assert not folder.exists()
    with checkpoint_folder("qat", "k", None) as nowhere:
        assert nowhere is None


def test_checkpoint_folder_may_be_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS_VARIABLE, str(tmp_path / "volume"))
    with checkpoint_folder("qat", "k", None) as folder:
        assert folder == tmp_path / "volume" / "qat" / "k"


def test_checkpoint_folder_forgets_what_nobody_resumed(tmp_path: Path) -> None:
    old, young = tmp_path / "qat" / ".old.checkpoints", tmp_path / "qat" / ".young.checkpoints"
    for folder, days in ((old, KEPT_DAYS + 1), (young, KEPT_DAYS - 1)):
        folder.mkdir(parents=True)
        (folder / "qat.state").write_bytes(b"state")
        then = time.time() - days * 86400
        os.utime(folder, (then, then))
    assert interrupt("old", StepStore(tmp_path)) == old
    assert old.is_dir()
    with checkpoint_folder("qat", "k", StepStore(tmp_path)):
        assert not old.exists()
        assert young.is_dir()
