"""Atomic files, and the names of unfinished ones."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from qat_lib.files import whole_files
from qat_lib.files.whole_files import (
    folder_beside,
    place_files,
    sweep_unfinished,
    unfinished_name,
    written_beside,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_unfinished_name_is_hidden_and_never_same() -> None:
    first, second = unfinished_name("a.json"), unfinished_name("a.json")
    assert re.fullmatch(rf"\.a\.json-[0-9a-f]{{8}}-{os.getpid()}-[0-9a-f]{{12}}\.tmp", first)
    assert first != second
    assert len(unfinished_name("a" * 200)) < 100


def test_written_beside_replaces_target_only_at_end(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with written_beside(target) as unfinished:
        assert unfinished.parent == tmp_path
        assert unfinished.read_bytes() == b""
        unfinished.write_text("new")
        assert target.read_text() == "old"
        assert len(names(tmp_path)) == 2
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.json"]


def test_written_beside_leaves_target_where_body_fails(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(ZeroDivisionError), written_beside(tmp_path / "a.json") as unfinished:
        unfinished.write_text(f"half {1 / 0}")
    assert (tmp_path / "a.json").read_text() == "old"
    assert names(tmp_path) == ["a.json"]


def test_written_beside_respects_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with written_beside(tmp_path / "a"):
            pass
        os.umask(0o007)
        with written_beside(tmp_path / "b"):
            pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o644, 0o660]


def test_written_beside_keeps_an_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qat_lib.files.whole_files.unfinished_name", lambda name: "taken")
    (tmp_path / "taken").write_text("somebody's")
    with pytest.raises(FileExistsError), written_beside(tmp_path / "a"):
        pytest.fail("the body ran")


def test_sweep_unfinished_removes_only_unfinished_files(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").write_text("")
    file, folder, link = (tmp_path / unfinished_name(name) for name in ("file", "folder", "link"))
    file.write_text("")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("")
    link.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    others = [
        "a-01234567-1-0123456789ab.tmp",
        ".a-01234567-1-0123456789a.tmp",
        ".a-01234567-1-0123456789ab.tmp.more",
        ".a-01234567-x-0123456789ab.tmp",
        ".mine.tmp",
    ]
    for name in others:
        (tmp_path / name).write_text("")
    sweep_unfinished(tmp_path, alone=True)
    assert names(tmp_path) == sorted([*others, "elsewhere"])
    assert names(tmp_path / "elsewhere") == ["kept"]


def test_sweep_unfinished_does_without_a_folder(tmp_path: Path) -> None:
    sweep_unfinished(tmp_path / "none")
    assert names(tmp_path) == []


def test_sweep_unfinished_continues_past_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError("busy")

    folder, file = (tmp_path / unfinished_name(name) for name in ("folder", "file"))
    folder.mkdir()
    file.write_text("")
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([folder, file]))
    monkeypatch.setattr(whole_files.shutil, "rmtree", busy)
    sweep_unfinished(tmp_path, alone=True)
    assert not file.exists()


@pytest.mark.parametrize(
    ("answer", "stays"), [(None, True), (PermissionError(), True), (ProcessLookupError(), False)]
)
def test_sweep_unfinished_keeps_the_work_of_running_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Exception | None, stays: bool
) -> None:
    work = tmp_path / unfinished_name("a")
    work.mkdir()

    def kill(process: int, number: int) -> None:
        assert (process, number) == (os.getpid(), 0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(whole_files.os, "kill", kill)
    sweep_unfinished(tmp_path)
    assert work.exists() is stays


def test_sweep_unfinished_keeps_the_work_of_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    monkeypatch.setattr(whole_files.os, "getpid", lambda: ended.pid)
    here = unfinished_name("a")
    whole_files._machine.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "gethostname", lambda: "another")
        (tmp_path / unfinished_name("a")).mkdir()
    whole_files._machine.cache_clear()
    (tmp_path / here).mkdir()
    sweep_unfinished(tmp_path)
    (left,) = names(tmp_path)
    assert left != here
    sweep_unfinished(tmp_path, alone=True)
    assert names(tmp_path) == []


def test_sweep_unfinished_removes_work_of_an_unreaped_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(whole_files.os, "getpid", lambda: killed.pid)
    work = tmp_path / unfinished_name("a")
    work.mkdir()
    sweep_unfinished(tmp_path)
    assert work.is_dir()
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    sweep_unfinished(tmp_path)
    assert names(tmp_path) == []
    killed.wait()


def test_folder_beside_is_removed_unless_renamed(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with pytest.raises(ZeroDivisionError), folder_beside(target) as folder:
        (folder / "file").write_text(f"half {1 / 0}")
    assert names(target.parent) == []
    with folder_beside(target) as folder:
        (folder / "file").write_text("whole")
        folder.rename(target)
    assert names(target.parent) == ["target"]
    assert names(target) == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from qat_lib.files.whole_files import folder_beside
with folder_beside(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folder_beside_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    target = tmp_path / "target"
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    with folder_beside(target) as folder:
        assert names(tmp_path) == [folder.name]


def test_place_files_moves_target_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, moved, replace = tmp_path / "b", list[str](), Path.replace
    target.write_text("old")

    def noted(path: Path, to: Path) -> Path:
        moved.append(to.name)
        return replace(path, to)

    monkeypatch.setattr(Path, "replace", noted)
    with folder_beside(target) as folder:
        for name in "cba":
            (folder / name).write_text("new")
        place_files(folder, target)
    assert (sorted(moved[:2]), moved[2:]) == (["a", "c"], ["b"])
    assert names(tmp_path) == ["a", "b", "c"]
    assert target.read_text() == "new"


def test_write_text_failure_keeps_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    whole_files.write_text(path, "old")

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        whole_files.write_text(str(path), "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_library_saves_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qat_lib.core.plan import QuantizationPlan
    from qat_lib.core.spec import QuantizationSpec
    from qat_lib.preprocessing import Preprocessing

    plan = QuantizationPlan(model="m", mode="full", quantizers=(), skipped=())
    saved = {
        "plan.json": plan,
        "spec.json": QuantizationSpec(),
        "spec.yaml": QuantizationSpec(),
        "preprocessing.json": Preprocessing(image_shape=(1, 1, 1)),
    }
    for name, value in saved.items():
        value.save(tmp_path / name)
    before = {name: (tmp_path / name).read_bytes() for name in saved}

    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_files, "sync", refuse)
    for name, value in saved.items():
        with pytest.raises(OSError, match="No space left"):
            value.save(tmp_path / name)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
