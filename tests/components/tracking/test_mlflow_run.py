"""Entries of a run in a real SQLite store: written, written twice, refused, and store away."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qat_lib.errors import TrackingError
from qatline.components.tracking import store as tracking_store
from qatline.components.tracking.mlflow_run import (
    Artifact,
    Curves,
    Metrics,
    MlflowRun,
    Params,
    Tags,
)
from qatline.components.tracking.store import CONTACT_SECONDS, ensure_store, open_client

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> Any:
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    ensure_store(uri, "writer", (folder / "artifacts").as_uri())
    return open_client(uri)


def new_run(client: Any) -> MlflowRun:
    experiment = client.get_experiment_by_name("writer").experiment_id
    return MlflowRun(client, client.create_run(experiment).info.run_id)


def test_points_written_again_stay_single(client: Any) -> None:
    run = new_run(client)
    history = [{"epoch": 1, "loss": 0.5, "note": "x"}, {"epoch": 2, "loss": 0.25}]
    for _ in range(2):
        run.record(Curves(history))  # type: ignore[arg-type]
        run.record(Metrics({"accuracy": 0.5}))
    run.record(Curves([{"loss": 0.125}], "finetune_qat"))
    points = {
        name: [(point.step, point.value) for point in client.get_metric_history(run.run_id, name)]
        for name in client.get_run(run.run_id).data.metrics
    }
    assert points == {
        "epoch/loss": [(1, 0.5), (2, 0.25)],
        "accuracy": [(0, 0.5)],
        "finetune_qat/loss": [(0, 0.125)],
    }


def test_changed_metric_gets_a_new_point(client: Any) -> None:
    run = new_run(client)
    for value in (0.5, 0.75):
        run.record(Metrics({"accuracy": value}))
    assert client.get_run(run.run_id).data.metrics["accuracy"] == 0.75
    assert len(client.get_metric_history(run.run_id, "accuracy")) == 2


def test_large_records_go_in_batches(client: Any) -> None:
    run = new_run(client)
    run.record(Params({f"p{index}": index for index in range(150)}))
    run.record(Tags({f"t{index}": "x" for index in range(150)}))
    run.record(Curves([{"epoch": epoch, "loss": 1 / (epoch + 1)} for epoch in range(1100)]))
    assert len(run.data().params) == 150
    assert run.data().tags["t149"] == "x"
    assert len(client.get_metric_history(run.run_id, "epoch/loss")) == 1100


def test_end_closes_the_run(client: Any) -> None:
    run = new_run(client)
    run.end("KILLED")
    assert client.get_run(run.run_id).info.status == "KILLED"


def test_server_that_goes_away_is_asked_before_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's own retries are not waited for."""
    clock, asked = SimpleNamespace(now=100.0), list[str]()
    monkeypatch.setattr(tracking_store.time, "monotonic", lambda: clock.now)

    def probe(uri: str) -> None:
        asked.append(uri)
        if len(asked) == 2:
            raise TrackingError("nobody answers")

    monkeypatch.setattr(tracking_store, "probe", probe)
    ended = list[str]()
    fake = SimpleNamespace(
        tracking_uri="http://x", set_terminated=lambda run_id, status, time: ended.append(status)
    )
    run = MlflowRun(fake, "run")
    for _ in range(2):  # the second within the time in which no answer is needed
        run.end("FINISHED")
    assert (asked, ended) == (["http://x"], ["FINISHED"] * 2)
    clock.now += CONTACT_SECONDS
    with pytest.raises(TrackingError, match="nobody answers"):
        run.end("FAILED")
    assert ended == ["FINISHED"] * 2


def test_missing_file_names_itself(client: Any, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"gone\.json can't be recorded"):
        new_run(client).record(Artifact(tmp_path / "gone.json"))
