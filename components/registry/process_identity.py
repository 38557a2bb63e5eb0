"""Which process this is, so that others on its machine see whether it lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_PROC = Path("/proc")
_START_FIELD = 19  # of /proc/PID/stat after the name: see proc(5), field 22


def process_identity() -> str:
    """Return machine, process namespace, process id and its start.

    Empty where the system does not tell: such a process counts as alive until its lease ends.
    """
    place = _place()
    start = _start(os.getpid())
    return f"{place} {os.getpid()} {start}" if place and start else ""


def is_gone(identity: str) -> bool:
    """Whether a process of this machine has ended; False where that can't be known."""
    place, _, rest = identity.partition(" ")
    number, _, start = rest.partition(" ")
    if not place or place != _place() or not number.isdigit():
        return False
    return _start(int(number)) != start


def _place() -> str:
    """Return what two processes share that see each other in /proc."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""
    return f"{socket.gethostname()}/{boot}/{space}"


def _start(number: int) -> str:
    """Return when a process started, in ticks since the boot; empty for none and for a zombie."""
    try:
        text = (_PROC / str(number) / "stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[_START_FIELD]
