"""Identity of a process, for liveness checks by other processes on its machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_PROC = Path("/proc")
_START_FIELD = 19  # of /proc/PID/stat after the name: see proc(5), field 22


def process_identity() -> str:
    """Return machine, process namespace, process id and start time.

    Empty if the system does not report them: such a process counts as alive until its lease ends.
    """
    place = _place()
    start = _start(os.getpid())
    return f"{place} {os.getpid()} {start}" if place and start else ""


def is_gone(identity: str) -> bool:
    """Return whether a process of this machine has ended; False if unknown."""
    place, _, rest = identity.partition(" ")
    number, _, start = rest.partition(" ")
    if not place or place != _place() or not number.isdigit():
        return False
    # The start time distinguishes the process from a later one with the same id.
    return _start(int(number)) != start


def _place() -> str:
    """Return the identity of the /proc namespace; equal for processes that can see each other."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""
    return f"{socket.gethostname()}/{boot}/{space}"


def _start(number: int) -> str:
    """Return a process's start in ticks since boot; empty if it does not exist or is a zombie."""
    try:
        text = (_PROC / str(number) / "stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[_START_FIELD]
