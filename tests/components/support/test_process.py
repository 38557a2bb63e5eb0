import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qatline.components.support import process
from qatline.components.support.process import die_with_launcher

ROOT = Path(__file__).parents[3]

# As KFP does it: the launcher starts a shell, which starts the step and waits for it.
LAUNCHER = """
    import os, subprocess, sys
    step = ("import os, sys, time; from pathlib import Path; "
            "from qatline.components.support.process import die_with_launcher; "
            "die_with_launcher(); Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(120)")
    environment = {**os.environ, "_KFP_RUNTIME": "true"}
    if sys.argv[2] == "named":
        environment["QATLINE_LAUNCHER_PID"] = str(os.getpid())
    command = f'"{sys.executable}" -c "$0" "$1"; true'
    subprocess.run(["sh", "-c", command, step, sys.argv[1]], env=environment)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before or while it is read
        return False


def wait_for(condition, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("how", ["named", "found"])
def test_step_dies_with_killed_launcher(tmp_path: Path, how: str) -> None:
    marker = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(marker), how], env=environment
    )
    assert wait_for(lambda: marker.exists() and marker.read_text() != "")
    step = int(marker.read_text())
    assert is_running(step)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(timeout=30)
    assert wait_for(lambda: not is_running(step))


def test_step_without_launcher_does_not_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=30)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_KFP_RUNTIME": "true",
        "QATLINE_LAUNCHER_PID": str(gone.pid),
    }
    code = "from qatline.components.support.process import die_with_launcher; die_with_launcher(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


def test_a_shutdown_skips_the_objects_of_the_process() -> None:
    code = """if True:
        import atexit, gc
        from qatline.components.support.process import collect_rarely
        atexit.register(lambda: print(gc.get_freeze_count()))  # after later registrations
        young = gc.get_threshold()[0]
        collect_rarely()
        print(gc.get_threshold()[0] > young, gc.get_freeze_count())
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=30,
        check=True,
    )
    rarer, before, after = done.stdout.split()
    assert rarer == b"True"
    assert int(after) > int(before) == 0


def test_outside_a_kfp_executor_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_KFP_RUNTIME", raising=False)
    monkeypatch.setenv("QATLINE_LAUNCHER_PID", "999999999")
    die_with_launcher()


class Watched:
    """The system calls of ``die_with_launcher``, without launcher or end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.threads: list[dict[str, Any]] = []
        self.error: OSError | None = None
        self.stat: dict[int, str] = {}
        monkeypatch.setattr(process.ctypes, "CDLL", self.library)
        monkeypatch.setattr(process.os, "pidfd_open", self.pidfd_open)
        monkeypatch.setattr(process.os, "getppid", lambda: 50)
        monkeypatch.setattr(
            process.os, "kill", lambda pid, number: self.asked.append(("kill", pid, number))
        )
        monkeypatch.setattr(process.threading, "Thread", self.thread)
        monkeypatch.setattr(process.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(process.Path, "read_text", lambda path: self.read_text(path))
        monkeypatch.setenv("_KFP_RUNTIME", "true")

    def library(self, name: str | None, *, use_errno: bool) -> Any:
        return SimpleNamespace(
            prctl=lambda *arguments: self.asked.append(("prctl", name, *arguments))
        )

    def pidfd_open(self, pid: int) -> int:
        self.asked.append(("watch", pid))
        if self.error is not None:
            raise self.error
        return 77

    def thread(self, **options: Any) -> Any:
        self.threads.append(options)
        return SimpleNamespace(start=lambda: self.asked.append("start"))

    def read_text(self, path: Path) -> str:
        pid = int(path.parts[2])
        if pid not in self.stat:
            raise FileNotFoundError
        return self.stat[pid]

    def run(self) -> list[Any]:
        self.asked.clear()
        die_with_launcher()
        return self.asked


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


DIE_FIRST = ("prctl", None, 1, signal.SIGKILL, 0, 0, 0)


def test_die_with_launcher_watches_named_process(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_LAUNCHER_PID", "4321")
    assert watched.run() == [DIE_FIRST, ("watch", 4321), "start"]
    (thread,) = watched.threads
    assert (thread["args"], thread["daemon"]) == ((77, signal.SIGKILL), True)


@pytest.mark.parametrize("named", ["", "x", "-5"])
def test_die_with_launcher_skips_shells(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("QATLINE_LAUNCHER_PID", named)
    watched.stat = {
        50: "50 (sh) S 40 1",
        40: "40 (bash) S 30 1",
        30: "30 (my (launcher) S 20 1",
        20: "20 (sh) S 1 1",
    }
    assert watched.run() == [DIE_FIRST, ("watch", 30), "start"]
    del watched.stat[40]  # it ended, or its folder is hidden
    assert watched.run() == [DIE_FIRST, ("watch", 40), "start"]
    watched.stat = {50: "50 (dash) S 2 1", 2: "2 (kthreadd) S 0 0"}
    assert watched.run() == [DIE_FIRST, ("watch", 2), "start"]


def test_die_with_launcher_ignores_first_process(watched: Watched) -> None:
    watched.stat = {50: "50 (sh) S 2 1", 2: "2 (sh) S 1 1", 1: "1 (init) S 0 0"}
    assert watched.run() == []


def test_die_with_launcher_ends_without_launcher(watched: Watched) -> None:
    watched.error = ProcessLookupError()
    kill = ("kill", os.getpid(), signal.SIGKILL)
    assert watched.run() == [DIE_FIRST, ("watch", 50), kill, kill]


def test_die_with_launcher_continues_without_watching(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.error = PermissionError(1, "Operation not permitted")
    assert watched.run() == [DIE_FIRST, ("watch", 50)]
    assert caplog.messages == ["process 50 can't be watched: [Errno 1] Operation not permitted"]


def test_die_with_launcher_is_noop_outside_executor(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_KFP_RUNTIME", "")
    assert watched.run() == []


FOLLOWER = """
import os, signal, sys, time
from qatline.components.support import process
if sys.argv[2] == "stubborn":
    process._GRACE = 0.2
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
process.follow(os.getppid(), signal.SIGTERM)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
time.sleep(120)
"""
START = """
import subprocess, sys
subprocess.run([sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("kind", ["polite", "stubborn"])
def test_follow_ends_a_process_with_its_parent(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "pid"
    command = [sys.executable, "-c", START, FOLLOWER, str(marker), kind]
    started = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert wait_for(lambda: marker.exists() and marker.read_text() != "")
    follower = int(marker.read_text())
    started.kill()
    started.wait(timeout=30)
    assert wait_for(lambda: not is_running(follower))
