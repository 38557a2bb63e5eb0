"""Directories for unfinished work, and which of them are swept."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from qat_lib.errors import StorageError
from qatline.components.store import work_directory as module
from qatline.components.store.work_directory import sweep, work_directory


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_work_directory_is_empty_and_named_by_process(tmp_path: Path) -> None:
    parent = tmp_path / "deep" / "er"
    first, second = (work_directory(parent, "0123456789abcdef") for _ in range(2))
    assert first != second
    assert first.is_dir()
    assert names(first) == []
    pattern = rf"\.work-{re.escape(socket.gethostname())}-{os.getpid()}-0123456789ab-[0-9a-f]{{12}}"
    assert re.fullmatch(pattern, first.name)
    assert names(parent) == sorted([first.name, second.name])


def test_work_directory_reports_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file can't be written"):
        work_directory(tmp_path / "file", "k")


@pytest.mark.parametrize(
    ("answer", "stays"), [(None, True), (PermissionError(), True), (ProcessLookupError(), False)]
)
def test_sweep_keeps_the_work_of_whoever_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception | None, stays: bool
) -> None:
    asked = []

    def kill(pid: int, number: int) -> None:
        asked.append((pid, number))
        if answer is not None:
            raise answer

    monkeypatch.setattr(module.os, "kill", kill)
    work = tmp_path / f".work-{socket.gethostname()}-4321-k-abc"
    (work / "deep").mkdir(parents=True)
    (work / "deep" / "file").write_text("")
    sweep(tmp_path)
    assert asked == [(4321, 0)]
    assert work.exists() is stays


def test_sweep_keeps_what_names_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(module.os, "kill", kill)
    kept = [f".work-{socket.gethostname()}-k-1", ".work-another-4321-k-abc", "4321-k"]
    for name in kept:
        (tmp_path / name).mkdir()
    sweep(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_sweep_takes_it_that_another_process_was_quicker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    remove = shutil.rmtree

    def remove_twice(path: Path, **options: bool) -> None:
        remove(path)
        remove(path, **options)

    monkeypatch.setattr(module.os, "kill", gone)
    monkeypatch.setattr(module.shutil, "rmtree", remove_twice)
    (tmp_path / f".work-{socket.gethostname()}-4321-k-abc").mkdir()
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_sweep_removes_work_of_unreaped_process(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    work = tmp_path / f".work-{socket.gethostname()}-{killed.pid}-k-abc"
    work.mkdir()
    sweep(tmp_path)
    assert work.is_dir()
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    sweep(tmp_path)
    assert names(tmp_path) == []
    killed.wait()
