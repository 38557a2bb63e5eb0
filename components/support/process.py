"""The process of a step, a launcher or a command: its end, and its garbage collection.

A step ends with its launcher, even if that is killed. KFP starts a shell between the launcher and
the step's process, and the shell survives a launcher killed with SIGKILL: the step would continue
alone and collide with a resumed run. The step therefore watches the launcher through a process
descriptor, since process ids are reused.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import os
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

LAUNCHER_VARIABLE = "QATLINE_LAUNCHER_PID"
KFP_EXECUTOR_VARIABLE = "_KFP_RUNTIME"
_PR_SET_PDEATHSIG = 1
_GRACE = 10.0  # seconds
_SHELLS = frozenset({"sh", "bash", "dash"})

_log = logging.getLogger(__name__)


def collect_rarely() -> None:
    """Reduce the time of garbage collection in this process.

    Imports and traced graphs create a million long-lived objects. With Python's default thresholds,
    repeated searches through them take a fifth of the time of the imports, and a second at exit.
    """
    gc.set_threshold(10_000, 10, 10)
    atexit.register(gc.freeze)  # the collections of a shutdown skip frozen objects


def die_with_launcher() -> None:
    """Terminate this process when its launcher ends.

    Outside a KFP executor nothing is done. The launcher is the process in ``QATLINE_LAUNCHER_PID``,
    else the nearest ancestor other than a shell. If it has already ended, this process terminates
    at once.
    """
    if not os.environ.get(KFP_EXECUTOR_VARIABLE):
        return
    named = os.environ.get(LAUNCHER_VARIABLE, "")
    launcher = int(named) if named.isdigit() else _nearest_non_shell(os.getppid())
    # The end of process 1 ends the whole container: there is nothing to watch.
    if launcher > 1:
        follow(launcher)


def follow(process: int, number: int = signal.SIGKILL) -> None:
    """Terminate this process when another one ends, or at once if it has already ended.

    Args:
        process: id of the parent process, or of another ancestor.
        number: signal to send to this process. SIGKILL follows after ten seconds.
    """
    # The kernel covers the parent of this process, even if a C function blocks all threads.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        _end(number)
    except (OSError, AttributeError) as error:
        _log.warning("process %d can't be watched: %s", process, error)
    else:
        threading.Thread(
            target=_wait, args=(descriptor, number), name="parent-watch", daemon=True
        ).start()


def _wait(descriptor: int, number: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    _end(number)


def _end(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


def _nearest_non_shell(pid: int) -> int:
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            return pid
        if name not in _SHELLS:
            return pid
        pid = int(rest.split()[1])
    return pid
