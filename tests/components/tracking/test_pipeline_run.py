"""The one run of a pipeline run: found, made, agreed on and closed."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import DataError, TrackingError
from qatline.components.tracking import pipeline_run as rooms
from qatline.components.tracking.mlflow_run import Curves, Metrics
from qatline.components.tracking.pipeline_run import (
    RUN_TAG,
    close_children,
    close_parent,
    find_or_create_parent,
    pipeline_run,
)
from qatline.components.tracking.step_run import step_run
from qatline.components.tracking.store import ensure_store, open_client

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, str]:
    """A SQLite store and the id of an experiment in it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    return uri, ensure_store(uri, "pipelines", (folder / "artifacts").as_uri())


@pytest.fixture
def client(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Point the environment at the store; return a client."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "pipelines")
    return open_client(store[0])


def runs_of(client: Any, experiment: str, key: str) -> list[Any]:
    return list(client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{key}'"))


def test_find_or_create_parent_finds_what_it_made(store: tuple[str, str], client: Any) -> None:
    first = find_or_create_parent(client, store[1], "kfp-1", name="nightly", tags={"a": "b"})
    assert find_or_create_parent(client, store[1], "kfp-1") == first
    assert find_or_create_parent(client, store[1], "kfp-2") != first
    run = client.get_run(first)
    assert (run.info.run_name, run.info.status) == ("nightly", "RUNNING")
    assert (run.data.tags[RUN_TAG], run.data.tags["a"]) == ("kfp-1", "b")
    assert run.data.tags["mlflow.source.name"] == "qatline"


def test_new_parent_names_who_started_it(
    store: tuple[str, str], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_USER", "ada")
    run = client.get_run(find_or_create_parent(client, store[1], "kfp-ada"))
    assert run.data.tags["mlflow.user"] == "ada"
    assert run.info.run_name == "pipeline run kfp-ada"


def test_steps_that_start_at_once_agree(store: tuple[str, str], client: Any) -> None:
    """All look before any has made a run, which is the worst order."""
    barrier, found, agreed = threading.Barrier(4), rooms._candidates, list[str]()
    waited = threading.local()

    def look(*arguments: Any) -> list[Any]:
        seen = found(*arguments)
        if not getattr(waited, "once", False):
            waited.once = True
            barrier.wait(timeout=60)
        return seen

    def start() -> None:
        agreed.append(find_or_create_parent(open_client(store[0]), store[1], "race"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rooms, "_candidates", look)
        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
    assert len(agreed) == 4
    assert len(set(agreed)) == 1
    assert [run.info.run_id for run in runs_of(client, store[1], "race")] == agreed[:1]


def test_run_of_a_late_step_is_withdrawn(store: tuple[str, str], client: Any) -> None:
    leader = find_or_create_parent(client, store[1], "late")
    client.create_run(store[1], start_time=1, tags={RUN_TAG: "late"})  # saw no other run
    assert find_or_create_parent(client, store[1], "late") == leader
    assert [run.info.run_id for run in runs_of(client, store[1], "late")] == [leader]


class BusyStore:
    """A client whose store is busy at the first call of each method."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.refused: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            from mlflow.exceptions import MlflowException
            from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

            if name not in self.refused:
                self.refused.add(name)
                raise MlflowException("database is locked", TEMPORARILY_UNAVAILABLE)
            return getattr(self._client, name)(*arguments, **options)

        return call


def test_busy_store_leaves_no_second_run(store: tuple[str, str], client: Any) -> None:
    busy = BusyStore(client)
    leader = find_or_create_parent(busy, store[1], "busy")
    late = client.create_run(store[1], start_time=1, tags={RUN_TAG: "busy"}).info.run_id
    assert rooms._elect(busy, rooms._candidates(client, store[1], "busy")) == leader
    assert [run.info.run_id for run in runs_of(client, store[1], "busy")] == [leader]
    assert client.get_run(late).info.lifecycle_stage == "deleted"
    assert {"create_run", "search_runs", "log_param", "delete_run"} <= busy.refused


class InterruptedCallError(Exception):
    """A process that ends between two calls."""


@pytest.mark.parametrize("calls", range(6))
def test_parent_is_agreed_on_after_a_killed_step(
    store: tuple[str, str], client: Any, calls: int
) -> None:
    """The run that looks later, and was made earlier, does not lead alone."""
    key = f"killed-{calls}"
    for start_time in (2, 1):  # the second is older by its own clock
        client.create_run(store[1], start_time=start_time, tags={RUN_TAG: key})

    class Killed:
        left = calls

        def __getattr__(self, name: str) -> Any:
            if name in ("log_param", "delete_run"):
                if self.left == 0:
                    raise InterruptedCallError
                self.left -= 1
            return getattr(client, name)

    first = None
    with contextlib.suppress(TrackingError):
        first = find_or_create_parent(Killed(), store[1], key)
    assert (first is None) == (calls < 3)
    second = find_or_create_parent(client, store[1], key)
    assert first in (None, second)
    assert find_or_create_parent(client, store[1], key) == second


def test_elect_follows_a_leader_that_was_named_meanwhile(
    store: tuple[str, str], client: Any
) -> None:
    run_ids = []
    for start_time in (1, 2):
        run = client.create_run(store[1], start_time=start_time, tags={RUN_TAG: "meanwhile"})
        run_ids.append(run.info.run_id)
    seen = rooms._candidates(client, store[1], "meanwhile")
    leader = max(run_ids)  # an election proposes the other one
    client.log_param(leader, "qatline.parent", leader)  # after the look
    assert rooms._elect(client, seen) is None
    assert find_or_create_parent(client, store[1], "meanwhile") == leader


def test_pipeline_run_prefers_the_given_parent(
    store: tuple[str, str], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pipeline_run(client) == (None, store[1])
    monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", "kfp-3")
    monkeypatch.setenv("QATLINE_PIPELINE_NAME", "nightly")
    found, experiment = pipeline_run(client)
    assert experiment == store[1]
    assert client.get_run(found).info.run_name == "nightly"
    given = client.create_run(store[1]).info.run_id
    monkeypatch.setenv("QATLINE_PARENT_RUN_ID", given)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    assert pipeline_run(client) == (given, store[1])


def test_steps_of_a_cluster_run_have_one_parent(
    store: tuple[str, str], client: Any, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", "kfp-4")
    with step_run("prepare_data", warn=progress.warn):
        pass
    for _ in range(2):  # a retry
        with (
            contextlib.suppress(DataError),
            step_run("finetune_qat", warn=progress.warn) as tracker,
        ):
            tracker.record_pipeline(Curves([{"epoch": 1, "loss": 0.5}], "finetune_qat"))
            raise DataError("x")
    (parent,) = runs_of(client, store[1], "kfp-4")
    made = client.search_runs([store[1]], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(child.info.run_name for child in made) == [
        "finetune_qat",
        "finetune_qat",
        "prepare_data",
    ]
    points = client.get_metric_history(parent.info.run_id, "finetune_qat/loss")
    assert [(point.step, point.value) for point in points] == [(1, 0.5)]


def test_plugin_keeps_its_own_parent(
    store: tuple[str, str], client: Any, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    """The backend's plugin has made a run for the pipeline and one for the task."""
    parent = client.create_run(store[1]).info.run_id
    task = client.create_run(store[1], tags={"mlflow.parentRunId": parent}).info.run_id
    monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", "kfp-5")
    monkeypatch.setenv("MLFLOW_RUN_ID", task)
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.record_pipeline(Metrics({"qat_engine/accuracy": 0.5}))
        assert close_parent("kfp-5", "FINISHED") is None
    assert runs_of(client, store[1], "kfp-5") == []
    assert client.get_run(parent).data.metrics == {"qat_engine/accuracy": 0.5}
    assert client.get_run(parent).info.status == "RUNNING"


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_close_parent_closes_run_and_children(
    store: tuple[str, str], client: Any, status: str
) -> None:
    key = f"closed-{status}"
    parent = find_or_create_parent(client, store[1], key)
    child = client.create_run(store[1], tags={"mlflow.parentRunId": parent}).info.run_id
    assert close_parent(key, status, reason="no pods", tags={"x": "y"}) == parent
    run = client.get_run(parent)
    assert run.info.status == status
    assert (run.data.tags["mlflow.note.content"], run.data.tags["x"]) == (f"{status}: no pods", "y")
    left = "KILLED" if status == "KILLED" else "FAILED"
    assert client.get_run(child).info.status == left


def test_close_parent_without_a_run_makes_none(
    store: tuple[str, str], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert close_parent("nobody", "FAILED") is None
    monkeypatch.setenv("QATLINE_TRACKING", "off")
    find_or_create_parent(client, store[1], "off")
    assert close_parent("off", "FAILED") is None
    assert runs_of(client, store[1], "nobody") == []


def test_close_children_leaves_other_runs(store: tuple[str, str], client: Any) -> None:
    parent = find_or_create_parent(client, store[1], "family")
    tags = {"mlflow.parentRunId": parent}
    done, open_ = (client.create_run(store[1], tags=tags).info.run_id for _ in range(2))
    client.set_terminated(done, "FINISHED")
    close_children(client, store[1], parent, "KILLED")
    ends = [client.get_run(run_id).info.status for run_id in (done, open_, parent)]
    assert ends == ["FINISHED", "KILLED", "RUNNING"]


def test_store_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(TrackingError, match="can't be reached"):
        close_parent("kfp", "FAILED")
