"""Lock in the registry itself, with owner and expiry.

MLflow's stores have no compare-and-set. All of them can set a uniquely named tag and read all tags.
Each contender therefore sets a flag, a tag with a unique name, and then reads the other flags: of
two simultaneous contenders, at least one sees the other. A contender that sees no other flag owns
the lock; if two contenders see each other, the one with the higher token removes its flag.

The owner renews its flag. A flag is dead, and is removed, if the observer's clock sees no renewal
for the duration of the lease, or if its process on the same machine has exited. Names are never
reused, so a removal cannot affect another contender.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from qat_lib.errors import TrackingError
from qatline.components.registry.process_identity import is_gone, process_identity
from qatline.components.registry.registry import Registry

LOCK_TAG = "qatline.lock."
_RENEWALS_A_LEASE = 4
_LONGEST_POLL = 2.0  # seconds

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """Content of a contender's flag.

    Attributes:
        owner: the run and its process, for display.
        process: identity of the process, used by other processes on the same machine.
        lease: seconds without a renewal after which the flag is dead.
        beat: number of renewals.
        held: whether the contender owns the lock.
        expires: end of the lease, for display.
    """

    owner: str = ""
    process: str = ""
    lease: float = 60.0
    beat: int = 0
    held: bool = False
    expires: str = ""

    def to_json(self) -> str:
        """Return the text of the tag."""
        expires = datetime.now(timezone.utc) + timedelta(seconds=self.lease)
        content = {
            "owner": self.owner,
            "process": self.process,
            "lease": self.lease,
            "beat": self.beat,
            "held": self.held,
            "expires": expires.isoformat(timespec="seconds"),
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Flag:
        """Read a tag; an unreadable one becomes a flag without renewals."""
        try:
            content = json.loads(text)
            return cls(
                owner=str(content["owner"]),
                process=str(content["process"]),
                lease=float(content["lease"]),
                beat=int(content["beat"]),
                held=bool(content["held"]),
                expires=str(content.get("expires", "")),
            )
        except (ValueError, KeyError, TypeError):
            return cls(owner="unknown")


class LockLostError(TrackingError):
    """Another process took over the lock of an apparently dead promotion."""


@dataclass
class _Watch:
    """Liveness of other contenders, by this process's clock."""

    clock: Callable[[], float]
    seen: dict[str, tuple[int, float]] = field(default_factory=dict)

    def is_dead(self, token: str, flag: Flag) -> bool:
        """Return whether a flag missed its lease or its process has exited."""
        # Clocks of machines differ: only changes of ``beat`` count, timed by the local clock.
        now = self.clock()
        beat, since = self.seen.get(token, (flag.beat, now))
        if beat != flag.beat:
            beat, since = flag.beat, now
        self.seen[token] = (beat, since)
        return now - since > flag.lease or is_gone(flag.process)


class Lease:
    """An owned lock; call ``check`` before each write."""

    def __init__(
        self, registry: Registry, token: str, flag: Flag, *, renewed: float | None = None
    ) -> None:
        self._registry, self._token, self._flag = registry, token, flag
        self._renewed = _uptime() if renewed is None else renewed
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="registry-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that this process still owns the lock.

        Raises:
            LockLostError: another process took it over, or the lease ended.
        """
        flags = read_flags(self._registry.state().tags)
        holders = [flag.owner for token, flag in flags.items() if flag.held]
        if self._token not in flags or len(holders) > 1 or self._has_ended():
            self._ended.set()
            others = " and ".join(owner for owner in holders if owner != self._flag.owner)
            raise LockLostError(
                f"The promotion's lock on {self._registry.name!r} was taken over"
                f"{f' by {others}' if others else ''}, or its lease of {self._flag.lease:g} s "
                "ended without a renewal. Run it again, or raise registry.lease_seconds."
            )

    def release(self) -> None:
        """Remove the flag."""
        self._ended.set()
        try:
            # Excludes a renewal in progress, which would set the flag again after its removal.
            with self._renewing:
                self._registry.delete_tag(LOCK_TAG + self._token)
        except TrackingError as error:
            _log.warning("the lock of the promotion stays until its lease ends: %s", error)

    def _beat(self) -> None:
        while not self._ended.wait(self._flag.lease / _RENEWALS_A_LEASE):
            try:
                with self._renewing:
                    if self._ended.is_set():
                        return
                    self._renew()
            except TrackingError as error:  # the next renewal or write detects a loss
                _log.warning("the lock of the promotion can't be renewed: %s", error)

    def _renew(self) -> None:
        if self._token not in read_flags(self._registry.state().tags) or self._has_ended():
            self._ended.set()  # never raise a removed flag again; ``check`` reports it
            return
        # Count the lease from before the write: a slow write must not extend it.
        begun = _uptime()
        self._flag = replace(self._flag, beat=self._flag.beat + 1)
        self._registry.set_tag(LOCK_TAG + self._token, self._flag.to_json())
        # If the process slept before this write, its flag may have been removed and is now raised
        # again without the lock. Remove it, so that no later renewal makes it look alive.
        if self._has_ended():
            self._ended.set()
            self._registry.delete_tag(LOCK_TAG + self._token)
            return
        self._renewed = begun

    def _has_ended(self) -> bool:
        """Return whether the lease ended without a renewal."""
        return _uptime() - self._renewed > self._flag.lease


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

    Raises:
        TrackingError: the store fails.
    """
    # A new token per attempt: a flag removed as dead never belongs to a later attempt.
    token = uuid.uuid4().hex
    flag = Flag(owner=owner, process=process_identity(), lease=lease)
    begun = acquire(registry, token, flag, waiting=waiting, clock=clock, sleep=sleep)
    held = Lease(registry, token, replace(flag, held=True), renewed=begun)
    try:
        yield held
    finally:
        held.release()


def acquire(
    registry: Registry,
    token: str,
    flag: Flag,
    *,
    waiting: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait for the lock, mark it as owned by this flag, and return the start time of the lease."""
    watch, told, raised = _Watch(clock), "", False
    while True:
        others = _living(registry, token, watch)
        if raised and not others:
            begun = _uptime()
            registry.set_tag(LOCK_TAG + token, replace(flag, held=True).to_json())
            # A process that slept past its lease detects its successor here.
            others = _living(registry, token, watch)
            if not any(each.held for each in others.values()):
                return begun
        blocked = any(each.held or other < token for other, each in others.items())
        if blocked and raised:
            registry.delete_tag(LOCK_TAG + token)
            raised = False
        elif not blocked:
            flag = replace(flag, beat=flag.beat + 1)
            registry.set_tag(LOCK_TAG + token, flag.to_json())
            if raised:  # wait until contenders with higher tokens see it
                sleep(_pause(flag))
            raised = True
            continue
        holder = " and ".join(sorted(each.owner for each in others.values()))
        if holder != told:
            waiting(holder)
            told = holder
        sleep(_pause(flag))


def read_flags(tags: Mapping[str, str]) -> dict[str, Flag]:
    """Return the flags among a model's tags by token."""
    flags = {}
    for key, text in tags.items():
        if key.startswith(LOCK_TAG):
            flags[key.removeprefix(LOCK_TAG)] = Flag.from_json(text)
    return flags


def _living(registry: Registry, token: str, watch: _Watch) -> dict[str, Flag]:
    """Return the live flags of other contenders; remove dead ones."""
    living = {}
    for other, flag in read_flags(registry.state().tags).items():
        if other == token:
            continue
        if watch.is_dead(other, flag):
            _log.warning("the lock of %s is dead and removed", flag.owner)
            registry.delete_tag(LOCK_TAG + other)
        else:
            living[other] = flag
    return living


def _uptime() -> float:
    """Return seconds of a clock that advances during suspend."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def _pause(flag: Flag) -> float:
    """Return the delay before the next poll, in seconds."""
    # The jitter keeps contenders from polling in step and colliding repeatedly.
    return min(_LONGEST_POLL, flag.lease / _RENEWALS_A_LEASE) * random.uniform(0.3, 1.0)
