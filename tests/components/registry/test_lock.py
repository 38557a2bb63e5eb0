"""The lock of the registry: alone in it, in any order of requests, and after deaths."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from memory_registry import MemoryRegistry

from qat_lib.errors import TrackingError
from qatline.components.registry.lock import (
    LOCK_TAG,
    Flag,
    Lease,
    LockLostError,
    acquire,
    registry_lock,
)
from qatline.components.registry.process_identity import process_identity
from qatline.components.registry.registry import ModelState


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


class TurnedRegistry(MemoryRegistry):
    """A registry whose requests wait for their turn."""

    def __init__(self, shared: MemoryRegistry, turns: Turns, name: str) -> None:
        super().__init__(shared.folder)
        self.exists = True
        self.model_tags = shared.model_tags
        self._turns, self._who = turns, name

    def state(self) -> ModelState:
        self._turns.take(self._who)
        return super().state()

    def set_tag(self, key: str, value: str) -> None:
        self._turns.take(self._who)
        super().set_tag(key, value)

    def delete_tag(self, key: str) -> None:
        self._turns.take(self._who)
        super().delete_tag(key)


@pytest.mark.parametrize("contenders", [2, 3])
def test_acquire_lets_one_in_whatever_the_order_of_requests(
    tmp_path: Path, contenders: int
) -> None:
    for seed in range(60):
        inside, most = 0, 0
        done: list[str] = []
        names = [f"{index}" for index in range(contenders)]
        turns, shared = Turns(names, seed), MemoryRegistry(tmp_path)

        def contend(
            name: str,
            turns: Turns = turns,
            shared: MemoryRegistry = shared,
            done: list[str] = done,
        ) -> None:
            nonlocal inside, most
            registry = TurnedRegistry(shared, turns, name)
            acquire(registry, name, Flag(owner=name), sleep=lambda seconds: None)
            inside += 1
            most = max(most, inside)
            registry.state()  # others have their turns meanwhile
            registry.state()
            inside -= 1
            registry.delete_tag(LOCK_TAG + name)
            done.append(name)
            turns.leave(name)

        threads = [threading.Thread(target=contend, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert most == 1, f"seed {seed}"
        assert sorted(done) == names
        assert shared.model_tags == {}


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


def test_locked_leaves_no_flag(registry: MemoryRegistry) -> None:
    with registry_lock(registry, owner="run 1", lease=60) as lease:
        lease.check()
        (text,) = registry.model_tags.values()
        flag = Flag.from_json(text)
        assert (flag.owner, flag.held, flag.lease) == ("run 1", True, 60)
        assert flag.expires > "2020"
    assert registry.model_tags == {}


def test_locked_takes_the_flag_down_after_an_error(registry: MemoryRegistry) -> None:
    with pytest.raises(ValueError, match="no"), registry_lock(registry, owner="run 1", lease=60):
        raise ValueError("no")
    assert registry.model_tags == {}


def test_acquire_waits_for_a_lease_before_it_removes_a_dead_flag(
    registry: MemoryRegistry,
) -> None:
    registry.set_tag(LOCK_TAG + "dead", Flag(owner="run 0", lease=30, held=True).to_json())
    clock, told = Clock(), list[str]()
    acquire(registry, "new", Flag(lease=30), waiting=told.append, clock=clock, sleep=clock.sleep)
    assert 30 < clock.now < 35
    assert told == ["run 0"]
    assert list(registry.model_tags) == [LOCK_TAG + "new"]


def test_acquire_waits_as_long_as_the_holder_renews(registry: MemoryRegistry) -> None:
    clock, renewals = Clock(), 0

    def sleep(seconds: float) -> None:
        nonlocal renewals
        clock.sleep(seconds)
        renewals += 1
        if clock.now < 500:
            flag = Flag(owner="run 0", lease=30, held=True, beat=renewals)
            registry.set_tag(LOCK_TAG + "living", flag.to_json())
        else:
            registry.delete_tag(LOCK_TAG + "living")

    registry.set_tag(LOCK_TAG + "living", Flag(lease=30, held=True).to_json())
    acquire(registry, "new", Flag(lease=30), clock=clock, sleep=sleep)
    assert clock.now >= 500


def test_acquire_removes_the_flag_of_an_ended_process_at_once(registry: MemoryRegistry) -> None:
    code = (
        "from qatline.components.registry.process_identity import process_identity as p; print(p())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    gone = Flag(owner="run 0", process=done.stdout.strip(), lease=3600, held=True)
    assert f" {os.getpid()} " not in gone.process
    registry.set_tag(LOCK_TAG + "gone", gone.to_json())
    acquire(registry, "new", Flag(), sleep=_must_not_sleep)
    assert list(registry.model_tags) == [LOCK_TAG + "new"]


def test_acquire_waits_for_a_living_process_of_this_machine(registry: MemoryRegistry) -> None:
    flag = Flag(owner="me", process=process_identity(), lease=3600, held=True)
    registry.set_tag(LOCK_TAG + "living", flag.to_json())
    with pytest.raises(TimeoutError):
        acquire(registry, "new", Flag(), sleep=_give_up)
    assert LOCK_TAG + "living" in registry.model_tags


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": 3}'])
def test_acquire_removes_unreadable_flags_after_a_lease(
    registry: MemoryRegistry, text: str
) -> None:
    registry.set_tag(LOCK_TAG + "odd", text)
    clock = Clock()
    acquire(registry, "new", Flag(lease=5), clock=clock, sleep=clock.sleep)
    assert clock.now > 60


def test_lease_is_renewed(registry: MemoryRegistry) -> None:
    with registry_lock(registry, owner="run 1", lease=0.2):
        deadline = time.monotonic() + 10
        while _beat(registry) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert _beat(registry) >= 4


def test_lease_that_was_taken_over_stops_its_holder(registry: MemoryRegistry) -> None:
    with registry_lock(registry, owner="slow", lease=60) as lease:
        registry.model_tags.clear()
        registry.set_tag(LOCK_TAG + "quick", Flag(owner="quick", held=True).to_json())
        with pytest.raises(LockLostError, match="taken over by quick"):
            lease.check()
    assert list(registry.model_tags) == [LOCK_TAG + "quick"]


def test_lease_stops_after_a_renewal_that_took_too_long(registry: MemoryRegistry) -> None:
    flag = Flag(owner="slow", lease=60, held=True)
    registry.set_tag(LOCK_TAG + "a", flag.to_json())  # raised again by the late renewal
    lease = Lease(registry, "a", flag, renewed=0.0)
    with pytest.raises(LockLostError, match="ended without a renewal"):
        lease.check()
    lease.release()


def test_renewal_of_a_process_that_slept_takes_no_lock_back(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept between its look at the flags and its write; meanwhile another was there."""
    clock = Clock()
    monkeypatch.setattr("qatline.components.registry.lock._uptime", clock)
    flag = Flag(owner="slow", lease=0.2, held=True)
    registry.set_tag(LOCK_TAG + "a", flag.to_json())
    asleep, write = threading.Event(), registry.set_tag

    def sleep_and_write(key: str, value: str) -> None:
        if not asleep.is_set():
            registry.model_tags.clear()  # another took the lock over, promoted and is gone
            clock.sleep(100)
            asleep.set()
        write(key, value)

    monkeypatch.setattr(registry, "set_tag", sleep_and_write)
    lease = Lease(registry, "a", flag, renewed=0.0)
    assert asleep.wait(10)
    time.sleep(0.3)  # time for renewals that must not come
    assert registry.model_tags == {}
    with pytest.raises(LockLostError):
        lease.check()
    lease.release()


def test_lease_that_ended_is_not_renewed(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("qatline.components.registry.lock._uptime", clock)
    flag = Flag(owner="slow", lease=0.2, held=True)
    registry.set_tag(LOCK_TAG + "a", flag.to_json())
    lease = Lease(registry, "a", flag, renewed=-0.3)
    time.sleep(0.3)
    assert _beat(registry) == 0
    with pytest.raises(LockLostError, match="ended without a renewal"):
        lease.check()
    lease.release()


def test_lease_stops_beside_another_holder(registry: MemoryRegistry) -> None:
    with registry_lock(registry, owner="slow", lease=60) as lease:
        registry.set_tag(LOCK_TAG + "quick", Flag(owner="quick", held=True).to_json())
        with pytest.raises(LockLostError, match=r"registry\.lease_seconds"):
            lease.check()


def test_lease_is_not_raised_again_once_removed(registry: MemoryRegistry) -> None:
    registry.set_tag(LOCK_TAG + "a", Flag(lease=0.1, held=True).to_json())
    lease = Lease(registry, "a", Flag(lease=0.1, held=True))
    registry.model_tags.clear()
    time.sleep(0.3)
    assert registry.model_tags == {}
    lease.release()


def test_release_tells_of_a_store_that_is_away(
    registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(key: str) -> None:
        raise TrackingError("the store is away")

    with registry_lock(registry, owner="run 1", lease=60):
        monkeypatch.setattr(registry, "delete_tag", refuse)
    assert "stays until its lease ends: the store is away" in caplog.text


def _beat(registry: MemoryRegistry) -> int:
    return max(Flag.from_json(text).beat for text in registry.model_tags.values())


def _must_not_sleep(seconds: float) -> None:
    raise AssertionError(f"slept for {seconds} s")


def _give_up(seconds: float) -> None:
    raise TimeoutError
