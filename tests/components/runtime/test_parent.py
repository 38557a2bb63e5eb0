import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from components.runtime.parent import die_with_launcher

ROOT = Path(__file__).parents[3]

# As KFP does it: the launcher starts a shell, which starts the step and waits for it.
LAUNCHER = """
    import os, subprocess, sys
    step = ("import os, sys, time; from pathlib import Path; from components.runtime.parent import die_with_launcher; "
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
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("how", ["named", "found"])
def test_a_step_dies_with_a_launcher_that_is_killed(tmp_path: Path, how: str) -> None:
    marker = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen([sys.executable, "-c", textwrap.dedent(LAUNCHER), str(marker), how], env=environment)
    assert wait_for(lambda: marker.exists() and marker.read_text() != "")
    step = int(marker.read_text())
    assert is_running(step)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(timeout=30)
    assert wait_for(lambda: not is_running(step))


def test_a_step_whose_launcher_is_gone_does_not_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=30)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_KFP_RUNTIME": "true", "QATLINE_LAUNCHER_PID": str(gone.pid)}
    code = "from components.runtime.parent import die_with_launcher; die_with_launcher(); print('alive')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


def test_outside_a_kfp_executor_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_KFP_RUNTIME", raising=False)
    monkeypatch.setenv("QATLINE_LAUNCHER_PID", "999999999")
    die_with_launcher()
