"""Turns of processes: timed steps run alone."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qatline.components.support.turns import TURNS_VARIABLE, turn

SPAWN = multiprocessing.get_context("spawn")
SECONDS = 20


def hold(alone: bool, holds: Any, leave: Any) -> None:
    with turn(alone=alone):
        holds.set()
        leave.wait(SECONDS)


@contextmanager
def holder(*, alone: bool) -> Iterator[tuple[Any, Any]]:
    """Start a process that takes a turn; yield the events of its start and its end."""
    holds, leave = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=hold, args=(alone, holds, leave))
    process.start()
    try:
        yield holds, leave
    finally:
        leave.set()
        process.join(SECONDS)
        process.kill()


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TURNS_VARIABLE, str(tmp_path / "turns"))


def test_turn_waits_for_nothing_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TURNS_VARIABLE, raising=False)
    with turn(alone=True), turn(alone=True):
        pass


def test_steps_share_their_turn(turns: None) -> None:
    with holder(alone=False) as (holds, _):
        assert holds.wait(SECONDS)
        with turn(alone=False):
            pass


def test_timed_step_waits_and_is_not_overtaken(turns: None) -> None:
    with holder(alone=False) as (first, leave_first):
        assert first.wait(SECONDS)
        with holder(alone=True) as (timed, leave_timed), holder(alone=True) as (_, leave_other):
            leave_other.set()
            time.sleep(0.5)
            assert not timed.is_set()
            leave_first.set()
            assert timed.wait(SECONDS)
            with holder(alone=False) as (last, _):
                time.sleep(0.5)
                assert not last.is_set()
                leave_timed.set()
                assert last.wait(SECONDS)
