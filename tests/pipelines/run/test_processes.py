"""Processes end together, also those that do not listen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qatline.pipelines.run.processes import end_group

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SLEEP = "print(flush=True); time.sleep(300)"
POLITE = f"import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); {SLEEP}"
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; {SLEEP}"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


def start(code: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_end_group_ends_by_force_what_ignores_sigterm() -> None:
    with start(STUBBORN) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())  # inherits the ignored signal
        try:
            end_group(process, grace=0.2)
            assert process.returncode == -signal.SIGKILL
            deadline = time.monotonic() + 10
            while is_running(child) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not is_running(child)
        finally:
            for pid in (process.pid, child):
                if is_running(pid):
                    os.kill(pid, signal.SIGKILL)


def test_end_group_lets_a_process_end_by_itself() -> None:
    with start(POLITE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end_group(process, grace=60)
        assert process.returncode == 7


def test_end_group_accepts_a_process_that_has_ended() -> None:
    with start("") as process:
        process.wait()
        end_group(process)
        assert process.returncode == 0
