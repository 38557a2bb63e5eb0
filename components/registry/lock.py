"""Lock of a registered model, with owner and expiry.

MLflow's compare-and-set is a unique name: ``create_registered_model`` succeeds for exactly one
caller. The lock of the model ``m`` is a registered model ``m-lock-1``, owned by its creator. Its
tags contain the owner and the expiry, which the owner renews.

A name must not be reused: ``delete_registered_model`` succeeds for several callers, and a process
that slept before its request would delete the lock of a later owner. Each lock therefore has a new
number. The tag ``qatline.lock.1`` of ``m`` ends ``m-lock-1``. The owner sets it, or any process that
finds the lock dead; the next lock is then ``m-lock-2``, and a former owner detects the loss.

A lock is dead without a renewal for the duration of its lease, by the observer's clock, or if its
process on the same machine has exited.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from qat_lib.errors import TrackingError
from qatline.components.registry.registry import LOCK_TOKEN, Registry

ENDED_TAG = "qatline.lock."
"""Prefix of the tags that end locks; the number of the lock follows."""

OWNER, PROCESS = "qatline.owner", "qatline.process"
LEASE, EXPIRES = "qatline.lease", "qatline.expires"
_DEFAULT_LEASE = 60.0  # seconds, of a lock without readable tags
_RENEWALS_A_LEASE = 4
_LONGEST_POLL = 2.0  # seconds

_log = logging.getLogger(__name__)


_PROC = Path("/proc")
_START_FIELD = 19  # of /proc/PID/stat after the name: see proc(5), field 22


class LockLostError(TrackingError):
    """Another process took over the lock of an apparently dead promotion."""


class Lease:
    """An owned lock, renewed in the background; call ``check`` before each write.

    Args:
        registry: the registered model.
        number: number of the lock.
        seconds: duration of the lease.
    """

    def __init__(self, registry: Registry, number: int, seconds: float) -> None:
        self._registry, self._number, self._seconds = registry, number, seconds
        self._released = threading.Event()
        threading.Thread(target=self._renew, name="registry-lease", daemon=True).start()

    def check(self) -> None:
        """Check that this process still owns the lock.

        Raises:
            LockLostError: another process ended the lock.
        """
        last = last_ended(self._registry)
        if last >= self._number:
            owner = self._registry.lock(last + 1).state().tags.get(OWNER)
            raise LockLostError(
                f"The promotion's lock on {self._registry.name!r} was taken over"
                f"{f' by {owner}' if owner else ''}: its lease of {self._seconds:g} s ended "
                "without a renewal. Run it again, or raise registry.lease_seconds."
            )

    def release(self) -> None:
        """End the lock; ending a lost lock again has no effect."""
        self._released.set()
        try:
            _end(self._registry, self._number)
        except TrackingError as error:
            _log.warning("the promotion lock remains until its lease ends: %s", error)

    def _renew(self) -> None:
        lock = self._registry.lock(self._number)
        while not self._released.wait(self._seconds / _RENEWALS_A_LEASE):
            try:
                lock.set_tag(EXPIRES, _expiry(self._seconds))
            except TrackingError as error:  # ``check`` reports a lost lock
                if not self._released.is_set():
                    _log.warning("the lock of the promotion can't be renewed: %s", error)


@contextmanager
def registry_lock(
    registry: Registry,
    *,
    owner: str,
    lease: float,
    waiting: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lease]:
    """Hold the lock of a registered model.

    Args:
        registry: the registered model, which must exist.
        owner: name of the owner, displayed to waiting processes.
        lease: seconds without a renewal after which the lock is free.
        waiting: receives the owner's name at each change.
        clock: returns the time in seconds.
        sleep: waits.

    Raises:
        TrackingError: the store fails.
    """
    number = acquire(registry, owner=owner, lease=lease, waiting=waiting, clock=clock, sleep=sleep)
    held = Lease(registry, number, lease)
    try:
        yield held
    finally:
        held.release()


def acquire(
    registry: Registry,
    *,
    owner: str,
    lease: float,
    waiting: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait for the lock, and return its number."""
    # The token identifies an own lock even if the answer to its creation was lost.
    token = uuid.uuid4().hex
    seen, since, told = ("", ""), clock(), ""
    while True:
        number = last_ended(registry) + 1
        lock = registry.lock(number)
        found = lock.state().tags
        if not found:
            lock.ensure(
                {
                    LOCK_TOKEN: token,
                    OWNER: owner,
                    PROCESS: process_identity(),
                    LEASE: f"{lease:g}",
                    EXPIRES: _expiry(lease),
                }
            )
            found = lock.state().tags
        if found.get(LOCK_TOKEN) == token:
            # The number may have been used and removed since the look at the model's tags.
            if last_ended(registry) < number:
                return number
            _remove(registry, number)
            continue
        # Clocks of machines differ: only changes count, timed by the local clock.
        state = (found.get(LOCK_TOKEN, ""), found.get(EXPIRES, ""))
        if state != seen:
            seen, since = state, clock()
        if clock() - since > _lease_of(found) or is_gone(found.get(PROCESS, "")):
            _log.warning("the lock of %s is dead and ended", found.get(OWNER, "unknown"))
            _end(registry, number)
            continue
        if (holder := found.get(OWNER, "unknown")) != told:
            waiting(holder)
            told = holder
        # The jitter keeps waiting processes from polling in step.
        sleep(min(_LONGEST_POLL, lease / _RENEWALS_A_LEASE) * random.uniform(0.3, 1.0))


def last_ended(registry: Registry) -> int:
    """Return the number of the last lock that ended; 0 for none."""
    return max(_ended(registry), default=0)


def _ended(registry: Registry) -> list[int]:
    tags = registry.state().tags
    found = [key.removeprefix(ENDED_TAG) for key in tags if key.startswith(ENDED_TAG)]
    return sorted(int(number) for number in found if number.isdecimal())


def _end(registry: Registry, number: int) -> None:
    """End a lock for good, and remove it; any number of processes may do so at any time."""
    # The tag comes first: without it the removed name could be created again.
    try:
        registry.set_tag(f"{ENDED_TAG}{number}", _expiry(0))
    except TrackingError:  # MLflow refuses one of two processes that set the same new tag
        if last_ended(registry) < number:
            raise
    # Earlier ones were left by killed processes, except the tag that this one replaces.
    for ended in [each for each in _ended(registry) if each <= number]:
        try:
            _remove(registry, ended)
            if ended < number:
                registry.delete_tag(f"{ENDED_TAG}{ended}")
        except TrackingError as error:  # a lock of another user, for example
            _log.warning("lock %d has ended, but can't be removed: %s", ended, error)


def _remove(registry: Registry, number: int) -> None:
    lock = registry.lock(number)
    if LOCK_TOKEN in lock.state().tags:  # else it is missing, or a model of that name
        lock.remove()


def _expiry(seconds: float) -> str:
    # In microseconds: each renewal must differ from the one before.
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()


def _lease_of(tags: Mapping[str, str]) -> float:
    try:
        return float(tags[LEASE])
    except (KeyError, ValueError):
        return _DEFAULT_LEASE


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
