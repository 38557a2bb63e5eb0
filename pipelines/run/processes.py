"""Processes that don't outlive each other."""

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
_GRACE = 10.0  # seconds between asking a process group to end and ending it


def follow_parent(parent: int, signal_number: int = signal.SIGTERM) -> None:
    """End this process when ``parent`` ends, however that happens.

    Linux sends ``signal_number`` at once; a thread that watches the parent's id covers other
    systems and the moment between the fork and this call.
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
    """Ask a child and everything in its process group to end.

    End them by force after ``grace`` seconds.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
