"""End of a process with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL of a process group


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
