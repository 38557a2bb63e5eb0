"""The lock of the registry: alone in it, in any order of requests, and after deaths."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from memory_registry import MemoryRegistry

from qat_lib.errors import TrackingError
from qatline.components.registry import lock as module
from qatline.components.registry.lock import (
    ENDED_TAG,
    EXPIRES,
    LEASE,
    OWNER,
    PROCESS,
    Lease,
    LockLostError,
    acquire,
    is_gone,
    last_ended,
    process_identity,
    registry_lock,
)
from qatline.components.registry.registry import LOCK_TOKEN


class Turns:
    """Lets one thread at a time make its next request, in an order of a seed."""

    def __init__(self, names: list[str], seed: int) -> None:
        self._random = random.Random(seed)
        self._waiting = set(names)
        self._arrived: set[str] = set()
        self._turn = ""
        self._condition = threading.Condition()

    def take(self, name: str) -> None:
        with self._condition:
            self._arrived.add(name)
            self._choose()
            while self._turn != name:
                self._condition.wait(10)
            self._turn = ""
            self._arrived.discard(name)

    def leave(self, name: str) -> None:
        with self._condition:
            self._waiting.discard(name)
            self._choose()

    def _choose(self) -> None:
        if not self._turn and self._arrived and self._arrived == self._waiting:
            self._turn = self._random.choice(sorted(self._arrived))
            self._condition.notify_all()


class TurnedRegistry:
    """A registry whose requests wait for their turn."""

    def __init__(self, shared: MemoryRegistry, turns: Turns, who: str) -> None:
        self.name = shared.name
        self._shared, self._turns, self._who = shared, turns, who

    def lock(self, number: int) -> TurnedRegistry:
        return TurnedRegistry(self._shared.lock(number), self._turns, self._who)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def request(*arguments: Any) -> Any:
            self._turns.take(self._who)
            return getattr(self._shared, name)(*arguments)

        return request


@pytest.mark.parametrize("contenders", [2, 3])
@pytest.mark.parametrize("dead", [False, True])
def test_registry_lock_admits_one_in_any_order_of_requests(
    tmp_path: Path, contenders: int, *, dead: bool
) -> None:
    for seed in range(60):
        inside, most = 0, 0
        done: list[str] = []
        names = [f"{index}" for index in range(contenders)]
        turns, shared = Turns(names, seed), MemoryRegistry(tmp_path)
        shared.ensure()
        if dead:
            shared.lock(1).ensure(lock_tags("run 0", lease=-1.0))

        def contend(
            name: str,
            turns: Turns = turns,
            shared: MemoryRegistry = shared,
            done: list[str] = done,
        ) -> None:
            nonlocal inside, most
            registry: Any = TurnedRegistry(shared, turns, name)
            for _ in range(2):  # the second time with a number seen while others were inside
                lock = registry_lock(registry, owner=name, lease=60, sleep=lambda seconds: None)
                with lock as lease:
                    inside += 1
                    most = max(most, inside)
                    lease.check()  # others have their turns meanwhile
                    lease.check()
                    inside -= 1
            done.append(name)
            turns.leave(name)

        threads = [threading.Thread(target=contend, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert most == 1, f"seed {seed}"
        assert sorted(done) == names
        check_free(shared)


def test_checks_succeed_in_the_order_of_the_locks(tmp_path: Path) -> None:
    """Each contender takes the others for dead at once, whether they own the lock or not."""
    for seed in range(60):
        names, succeeded, lost = ["0", "1", "2"], list[tuple[int, str]](), list[str]()
        turns, shared = Turns(names, seed), MemoryRegistry(tmp_path)
        shared.ensure()

        def contend(
            name: str,
            turns: Turns = turns,
            shared: MemoryRegistry = shared,
            succeeded: list[tuple[int, str]] = succeeded,
            lost: list[str] = lost,
        ) -> None:
            registry: Any = TurnedRegistry(shared, turns, name)
            clock = itertools.count(step=100).__next__
            for _ in range(3):
                number = acquire(registry, owner=name, lease=60, clock=clock, sleep=_must_not_sleep)
                lease = Lease(registry, number, 60)
                try:
                    for _ in range(3):
                        lease.check()
                        succeeded.append((number, name))
                except LockLostError:
                    lost.append(name)
                lease.release()
            turns.leave(name)

        threads = [threading.Thread(target=contend, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert [number for number, _ in succeeded] == sorted(number for number, _ in succeeded)
        owners = dict(succeeded)
        assert {(number, owners[number]) for number in owners} == set(succeeded)
        assert lost


def lock_tags(owner: str, *, lease: float = 60.0, process: str = "") -> dict[str, str]:
    return {
        LOCK_TOKEN: f"token of {owner}",
        OWNER: owner,
        PROCESS: process,
        LEASE: f"{lease}",
        EXPIRES: "2026-11-25T12:00:00",
    }


def check_free(registry: MemoryRegistry) -> None:
    """Check that only the tag of the last lock is left."""
    assert [number for number, lock in registry.locks.items() if lock.exists] == []
    late = [key for key in registry.model_tags if key != f"{ENDED_TAG}{last_ended(registry)}"]
    assert late == []


@pytest.fixture
def registry(tmp_path: Path) -> MemoryRegistry:
    made = MemoryRegistry(tmp_path)
    made.ensure()
    return made


class Clock:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_lock_is_a_model_with_owner_and_expiry(registry: MemoryRegistry) -> None:
    for number in (1, 2, 3):
        with registry_lock(registry, owner="run 1", lease=60) as lease:
            lease.check()
            tags = registry.lock(number).state().tags
            assert (tags[OWNER], tags[LEASE]) == ("run 1", "60")
            assert tags[EXPIRES] > "2020"
        check_free(registry)
    assert last_ended(registry) == 3


def test_lock_ends_after_an_error(registry: MemoryRegistry) -> None:
    with pytest.raises(ValueError, match="no"), registry_lock(registry, owner="run 1", lease=60):
        raise ValueError("no")
    check_free(registry)


def test_acquire_waits_for_a_lease_before_it_ends_a_dead_lock(registry: MemoryRegistry) -> None:
    registry.lock(1).ensure(lock_tags("run 0", lease=30))
    clock, told = Clock(), list[str]()
    number = acquire(
        registry, owner="new", lease=30, waiting=told.append, clock=clock, sleep=clock.sleep
    )
    assert number == 2
    assert 30 < clock.now < 35
    assert told == ["run 0"]
    assert not registry.lock(1).exists


def test_acquire_waits_as_long_as_the_owner_renews(registry: MemoryRegistry) -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now < 500:
            registry.lock(1).set_tag(EXPIRES, str(clock.now))
        else:
            registry.set_tag(f"{ENDED_TAG}1", "")

    registry.lock(1).ensure(lock_tags("run 0", lease=30))
    assert acquire(registry, owner="new", lease=30, clock=clock, sleep=sleep) == 2
    assert clock.now >= 500


def test_acquire_ends_the_lock_of_an_ended_process_at_once(registry: MemoryRegistry) -> None:
    code = "from qatline.components.registry.lock import process_identity as p; print(p())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    process = done.stdout.strip()
    assert f" {os.getpid()} " not in process
    registry.lock(1).ensure(lock_tags("run 0", process=process, lease=3600))
    assert acquire(registry, owner="new", lease=60, sleep=_must_not_sleep) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_acquire_accepts_a_lock_that_another_process_ended(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    def refuse(key: str, value: str) -> None:
        if ended:
            registry.model_tags[key] = value
        raise TrackingError("UNIQUE constraint failed")

    registry.lock(1).ensure(lock_tags("run 0", lease=-1))
    monkeypatch.setattr(registry, "set_tag", refuse)
    if ended:
        assert acquire(registry, owner="new", lease=60, sleep=_must_not_sleep) == 2
    else:
        with pytest.raises(TrackingError, match="UNIQUE"):
            acquire(registry, owner="new", lease=60, sleep=_must_not_sleep)


def test_acquire_waits_for_a_living_process_of_this_machine(registry: MemoryRegistry) -> None:
    registry.lock(1).ensure(lock_tags("me", process=process_identity(), lease=3600))
    with pytest.raises(TimeoutError):
        acquire(registry, owner="new", lease=60, sleep=_give_up)
    assert registry.lock(1).exists


@pytest.mark.parametrize("tags", [{}, {"purpose": "mine"}, {LOCK_TOKEN: "", LEASE: "long"}])
def test_acquire_passes_unreadable_locks_after_a_lease(
    registry: MemoryRegistry, tags: Mapping[str, str]
) -> None:
    registry.lock(1).ensure(tags)
    clock = Clock()
    assert acquire(registry, owner="new", lease=5, clock=clock, sleep=clock.sleep) == 2
    assert clock.now > 60
    # A model of a user is never removed.
    assert registry.lock(1).exists == (LOCK_TOKEN not in tags)


def test_acquire_recognizes_a_lock_whose_answer_was_lost(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client repeats a request without an answer; the second one finds the lock."""
    lock, ensure = registry.lock(1), registry.lock(1).ensure

    def ensure_twice(tags: Mapping[str, str]) -> None:
        ensure(tags)
        ensure(tags)

    monkeypatch.setattr(lock, "ensure", ensure_twice)
    assert acquire(registry, owner="new", lease=60, sleep=_must_not_sleep) == 1


def test_number_used_meanwhile_gives_no_lock(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process slept between its look and the creation; another used the lock meanwhile."""
    lock, ensure = registry.lock(1), registry.lock(1).ensure

    def sleep_and_ensure(tags: Mapping[str, str]) -> None:
        monkeypatch.undo()
        with registry_lock(registry, owner="quick", lease=60):
            pass
        ensure(tags)

    monkeypatch.setattr(lock, "ensure", sleep_and_ensure)
    assert acquire(registry, owner="slow", lease=60, sleep=_must_not_sleep) == 2
    assert not registry.lock(1).exists


def test_lock_left_by_killed_processes_is_removed(registry: MemoryRegistry) -> None:
    for number in (1, 2):  # killed between the tag and the removal
        registry.set_tag(f"{ENDED_TAG}{number}", "")
        registry.lock(number).ensure(lock_tags("run 0"))
    with registry_lock(registry, owner="run 1", lease=60):
        registry.set_tag(f"{ENDED_TAG}1", "")  # by a process that slept
    check_free(registry)
    assert last_ended(registry) == 3


def test_lock_that_may_not_be_removed_is_passed(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a server with users, a lock belongs to the user who created it."""

    def refuse() -> None:
        raise TrackingError("permission denied")

    registry.lock(1).ensure(lock_tags("another user", lease=-1))
    monkeypatch.setattr(registry.lock(1), "remove", refuse)
    for _ in range(2):
        with registry_lock(registry, owner="run 1", lease=60, sleep=_must_not_sleep) as lease:
            lease.check()
    assert "lock 1 has ended, but can't be removed: permission denied" in caplog.text
    assert sorted(registry.model_tags) == [f"{ENDED_TAG}1", f"{ENDED_TAG}3"]
    monkeypatch.undo()
    with registry_lock(registry, owner="another user", lease=60):
        pass
    check_free(registry)


def test_lease_is_renewed(registry: MemoryRegistry) -> None:
    with registry_lock(registry, owner="run 1", lease=0.2):
        seen, deadline = set[str](), time.monotonic() + 10
        while len(seen) < 4 and time.monotonic() < deadline:
            seen.add(registry.lock(1).state().tags[EXPIRES])
            time.sleep(0.02)
        assert len(seen) >= 4


def take_over(registry: MemoryRegistry) -> None:
    """Act as a process that found the first lock dead, and creates the second."""
    registry.set_tag(f"{ENDED_TAG}1", "")
    registry.lock(1).remove()
    registry.lock(2).ensure(lock_tags("quick"))


def test_lease_that_was_taken_over_stops_its_owner(registry: MemoryRegistry) -> None:
    with registry_lock(registry, owner="slow", lease=60) as lease:
        take_over(registry)
        with pytest.raises(LockLostError, match=r"taken over by quick.*registry\.lease_seconds"):
            lease.check()
    assert registry.lock(2).state().tags == lock_tags("quick")


def test_owner_that_slept_takes_no_lock_back(
    registry: MemoryRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    with registry_lock(registry, owner="slow", lease=0.1) as lease:
        take_over(registry)
        deadline = time.monotonic() + 10
        while "can't be renewed" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.02)
        with pytest.raises(LockLostError):
            lease.check()
    assert "can't be renewed" in caplog.text
    assert not registry.lock(1).exists
    assert registry.lock(2).state().tags == lock_tags("quick")


def test_release_tells_of_a_store_that_is_away(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(key: str, value: str) -> None:
        raise TrackingError("the store is away")

    with registry_lock(registry, owner="run 1", lease=60):
        monkeypatch.setattr(registry, "set_tag", refuse)
    assert "remains until its lease ends: the store is away" in caplog.text


def _must_not_sleep(seconds: float) -> None:
    raise AssertionError(f"slept for {seconds} s")


def _give_up(seconds: float) -> None:
    raise TimeoutError


def test_this_process_lives() -> None:
    identity = process_identity()
    assert f" {os.getpid()} " in identity
    assert not is_gone(identity)


def test_ended_process_is_gone_though_it_was_not_waited_for() -> None:
    place = process_identity().split()[0]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with open(f"/proc/{child.pid}/stat") as stream:
            start = stream.read().rpartition(")")[2].split()[19]
        identity = f"{place} {child.pid} {start}"
        assert not is_gone(identity)
        assert is_gone(f"{place} {child.pid} 1")  # another process of the same number
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(identity)
    assert is_gone(identity)  # its number is free


def test_processes_without_proc_count_as_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = process_identity()
    monkeypatch.setattr(module, "_PROC", tmp_path)
    assert process_identity() == ""
    assert not is_gone(identity)


def test_process_of_an_unknown_machine_or_start_has_no_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROC", tmp_path)
    stat = tmp_path / str(os.getpid()) / "stat"
    stat.parent.mkdir()
    stat.write_text(f"{os.getpid()} (python) S {' '.join(map(str, range(40)))}")
    assert process_identity() == ""  # no boot_id
    stat.unlink()
    for name in ("sys/kernel/random/boot_id", "self/ns/pid"):
        (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot")
    (tmp_path / "self/ns/pid").symlink_to("pid:[1]")
    assert process_identity() == ""  # no start


@pytest.mark.parametrize("identity", ["", "elsewhere 1 5", "x", "x y z"])
def test_process_elsewhere_counts_as_alive(identity: str) -> None:
    assert not is_gone(identity)
