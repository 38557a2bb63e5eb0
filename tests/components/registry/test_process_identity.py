"""Which processes of this machine have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qatline.components.registry import process_identity as module
from qatline.components.registry.process_identity import is_gone, process_identity


def test_this_process_lives() -> None:
    identity = process_identity()
    assert f" {os.getpid()} " in identity
    assert not is_gone(identity)


def test_ended_process_is_gone_though_it_was_not_waited_for() -> None:
    place = process_identity().split()[0]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with open(f"/proc/{child.pid}/stat") as stream:
            start = stream.read().rpartition(")")[2].split()[19]
        identity = f"{place} {child.pid} {start}"
        assert not is_gone(identity)
        assert is_gone(f"{place} {child.pid} 1")  # another process of the same number
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(identity)
    assert is_gone(identity)  # its number is free


def test_processes_without_proc_count_as_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = process_identity()
    monkeypatch.setattr(module, "_PROC", tmp_path)
    assert process_identity() == ""
    assert not is_gone(identity)


def test_process_of_an_unknown_machine_or_start_has_no_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROC", tmp_path)
    stat = tmp_path / str(os.getpid()) / "stat"
    stat.parent.mkdir()
    stat.write_text(f"{os.getpid()} (python) S {' '.join(map(str, range(40)))}")
    assert process_identity() == ""  # no boot_id
    stat.unlink()
    for name in ("sys/kernel/random/boot_id", "self/ns/pid"):
        (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot")
    (tmp_path / "self/ns/pid").symlink_to("pid:[1]")
    assert process_identity() == ""  # no start


@pytest.mark.parametrize("identity", ["", "elsewhere 1 5", "x", "x y z"])
def test_process_elsewhere_counts_as_alive(identity: str) -> None:
    assert not is_gone(identity)
