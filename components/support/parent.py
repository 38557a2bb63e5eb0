"""End a step when its launcher ends, for whatever reason.

Between the launcher and the step's process KFP puts a shell, which outlives a launcher that is
killed with SIGKILL: the step would go on alone, and a resumed run would meet it. So the step
watches the launcher itself, through a process descriptor, which can't be mistaken when a number is
used again.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import threading
from contextlib import suppress
from pathlib import Path

LAUNCHER_VARIABLE = "QATLINE_LAUNCHER_PID"
KFP_EXECUTOR_VARIABLE = "_KFP_RUNTIME"
_PR_SET_PDEATHSIG = 1
_SHELLS = frozenset({"sh", "bash", "dash"})

_log = logging.getLogger(__name__)


def die_with_launcher() -> None:
    """End this process when its launcher ends.

    Outside a KFP executor nothing is done. The launcher is the process named in
    ``QATLINE_LAUNCHER_PID``, else the nearest ancestor that is no shell. If it is gone already, the
    process ends at once.
    """
    if not os.environ.get(KFP_EXECUTOR_VARIABLE):
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    named = os.environ.get(LAUNCHER_VARIABLE, "")
    launcher = int(named) if named.isdigit() else _nearest_non_shell(os.getppid())
    if launcher > 1:
        follow(launcher)


def follow(process: int) -> None:
    """End this process when another one ends; at once if it is gone already."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        _end()
    except OSError as error:
        _log.warning("the launcher %d can't be watched: %s", process, error)
    else:
        threading.Thread(
            target=_wait, args=(descriptor,), name="launcher-watch", daemon=True
        ).start()


def _wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    _end()


def _end() -> None:
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
