"""Promotions of several processes at once, and of processes that are killed.

Against SQLite always; against an MLflow server on SQLite and on PostgreSQL with ``-m slow``.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stores import mlflow_server, postgres
from submissions import Submission, Submitter, submitter

from qatline.components.registry.journal import history
from qatline.components.registry.lock import ENDED_TAG, OWNER, last_ended
from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.tracking.store import ensure_store

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]

MOST_WRITES = 22  # of a promotion; the count is checked below


@dataclass
class Store:
    """A real store, and what submits to it."""

    uri: str
    experiment: str
    submitter: Submitter
    folder: Path

    def registry(self, name: str) -> MlflowRegistry:
        from mlflow import MlflowClient

        return MlflowRegistry(MlflowClient(self.uri), name, experiment_id=self.experiment)


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("server on sqlite", marks=pytest.mark.slow),
        pytest.param("server on postgresql", marks=pytest.mark.slow),
    ],
)
def store(
    request: Any, tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("store")
    sqlite = new_store(folder)
    if request.param == "sqlite":
        yield from opened(sqlite, folder)
    elif request.param == "server on sqlite":
        with mlflow_server(folder, sqlite) as uri:
            yield from opened(uri, folder)
    else:
        with postgres() as database, mlflow_server(folder, database) as uri:
            yield from opened(uri, folder)


def opened(uri: str, folder: Path) -> Iterator[Store]:
    local = None if uri.startswith("http") else (folder / "artifacts").as_uri()
    experiment = ensure_store(uri, "qatline", local)
    with submitter(uri, experiment, folder / "submissions") as made:
        yield Store(uri, experiment, made, folder / "submissions")


def check_whole(registry: MlflowRegistry) -> None:
    """Check what must hold whenever no promotion is under way."""
    state = registry.state()
    left = [key for key in state.tags if not key.startswith("qatline.history.")]
    number = last_ended(registry)
    assert left == [f"{ENDED_TAG}{number}"]
    for each in range(1, number + 2):
        assert registry.lock(each).state().tags == {}
    versions = registry.versions()
    assert "pending" not in {version.state for version in versions}
    digests = [version.digest for version in versions]
    assert len(set(digests)) == len(digests)
    moves = history(state.tags)
    assert [move.number for move in moves] == list(range(1, len(moves) + 1))
    assert moves[-1].to == state.aliases["champion"]
    assert state.aliases.get("previous") == moves[-1].left
    for before, after in itertools.pairwise(moves):
        assert after.left == before.to


@pytest.mark.matrix
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_best_of_simultaneous_candidates_becomes_champion(store: Store, count: int) -> None:
    name, go = f"race-{count}", store.folder / f"go-{count}"
    store.submitter.run(Submission(name=name, digest=f"{name}-0", accuracy=50))
    numbers = []
    for index in range(1, count + 1):
        digest = f"{name}-{index}"
        accuracy = 60 + 10 * index
        numbers.append(
            store.submitter.start(
                Submission(name=name, digest=digest, accuracy=accuracy, wait_for=str(go))
            )
        )
    wait_for_files(store.folder / f"judged-{name}-{index}" for index in range(1, count + 1))
    go.touch()
    answers = [store.submitter.answer(number) for number in numbers]
    assert {answer["action"] for answer in answers} <= {"promoted", "rejected"}, answers
    registry = store.registry(name)
    check_whole(registry)
    champion = registry.versions()[registry.state().aliases["champion"] - 1]
    assert champion.tags["accuracy"] == str(60 + 10 * count)
    accuracies = {}
    for version in registry.versions():
        accuracies[version.number] = int(version.tags["accuracy"])
    climbed = [accuracies[move.to] for move in history(registry.state().tags)]
    assert climbed == sorted(climbed)


@pytest.mark.parametrize("point", [4, 8])  # before the version, and with a move announced
def test_next_run_mends_what_a_killed_one_left(store: Store, point: int) -> None:
    killed_and_mended(store, f"kill-{point}", point)


@pytest.mark.matrix
def test_one_at_a_time_takes_over_from_a_killed_owner(store: Store) -> None:
    """All wait for the owner, which is then killed, and find its lock dead at the same time."""
    name, count = "killed-owner", 3
    run = store.submitter.run
    run(Submission(name=name, digest=f"{name}-0", accuracy=50))
    owner = store.submitter.start(
        Submission(name=name, digest=f"{name}-1", accuracy=60, stop_at=4, lease=3600)
    )
    wait_until_stopped(store.submitter.pid(owner))
    numbers = []
    for index in range(count):
        submission = Submission(name=name, digest=f"{name}-{2 + index}", accuracy=70 + index)
        numbers.append(store.submitter.start(submission))
    wait_for_files(store.folder / f"waiting-{name}-{2 + index}" for index in range(count))
    os.kill(store.submitter.pid(owner), signal.SIGKILL)
    assert store.submitter.answer(owner) == {"signal": signal.SIGKILL}
    answers = [store.submitter.answer(number) for number in numbers]
    assert {answer.get("action") for answer in answers} <= {"promoted", "rejected"}, answers
    registry = store.registry(name)
    check_whole(registry)
    champion = registry.versions()[registry.state().aliases["champion"] - 1]
    assert champion.digest == f"{name}-{1 + count}"
    assert last_ended(registry) == 2 + count


@pytest.mark.slow
def test_every_write_may_be_the_last(store: Store) -> None:
    for point in range(MOST_WRITES):
        if not killed_and_mended(store, f"every-{point}", point):
            break
    else:
        pytest.fail(f"a promotion makes more than {MOST_WRITES} writes")
    assert point >= 12


def killed_and_mended(store: Store, name: str, point: int) -> bool:
    """Kill a promotion before a write; return whether it had that many."""
    run = store.submitter.run
    assert run(Submission(name=name, digest=f"{name}-a", accuracy=80))["action"] == "promoted"
    candidate = Submission(name=name, digest=f"{name}-b", accuracy=90, kill_at=point)
    killed = run(candidate)
    registry = store.registry(name)
    assert registry.state().aliases["champion"] in (1, 2)
    if "signal" not in killed:
        return False
    assert run(Submission(name=name, digest=f"{name}-c", accuracy=10))["action"] == "rejected"
    check_whole(registry)
    candidate.kill_at = -1
    assert run(candidate)["action"] in ("promoted", "unchanged")
    check_whole(registry)
    champion = registry.versions()[registry.state().aliases["champion"] - 1]
    assert champion.digest == f"{name}-b"
    return True


@pytest.mark.matrix
@pytest.mark.parametrize(
    "point", [7, *(pytest.param(each, marks=pytest.mark.slow) for each in (3, 5, 6, 8, 9))]
)
def test_process_that_slept_through_its_lease_stops(store: Store, point: int) -> None:
    name = f"asleep-{point}"
    store.submitter.run(Submission(name=name, digest=f"{name}-a", accuracy=80))
    slow = Submission(name=name, digest=f"{name}-b", accuracy=85, stop_at=point, lease=5.0)
    number = store.submitter.start(slow)
    pid = store.submitter.pid(number)
    wait_until_stopped(pid)
    registry = store.registry(name)
    assert registry.lock(last_ended(registry) + 1).state().tags[OWNER] == f"run {name}-b"
    quick = store.submitter.run(Submission(name=name, digest=f"{name}-c", accuracy=90, lease=5.0))
    assert quick.get("action") == "promoted", quick
    os.kill(pid, signal.SIGCONT)
    answer = store.submitter.answer(number)
    assert answer.get("error") == "LockLostError", answer
    store.submitter.run(Submission(name=name, digest=f"{name}-d", accuracy=10))
    check_whole(registry)
    champion = registry.versions()[registry.state().aliases["champion"] - 1]
    assert champion.digest == f"{name}-c"


def wait_for_files(paths: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    for path in paths:
        while not path.exists():
            assert time.monotonic() < deadline, f"waited for {path.name} in vain"
            time.sleep(0.02)


def wait_until_stopped(pid: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "T":
            return
        assert time.monotonic() < deadline, "the process did not stop"
        time.sleep(0.02)
