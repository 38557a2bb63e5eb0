"""Coupled lifetimes of processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL of a process group


def follow_parent(parent: int, signal_number: int = signal.SIGTERM) -> None:
    """Terminate this process when ``parent`` ends, even if killed.

    On Linux the kernel sends ``signal_number`` immediately. A thread that polls the parent's id
    covers other systems and the interval between the fork and this call.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal_number)
        time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="follow-parent", daemon=True).start()


def end_group(process: subprocess.Popen[bytes], grace: float = _GRACE) -> None:
    """Terminate a child and its process group; kill them after ``grace`` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            # Even after the child's exit: its own children may still run.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
