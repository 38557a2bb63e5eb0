"""A run's folder replayed into a store that was away."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import StorageError, TrackingError
from qatline.components.tracking.store import open_client
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.folder import create_run
from qatline.pipelines.run.sync import sync_run

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
ON = {"QATLINE_TRACKING": ""}


def everything(tracking: dict[str, str]) -> dict[str, Any]:
    """Return what a store holds of all runs, without times."""
    client, found = open_client(tracking["uri"]), {}
    for run in client.search_runs([tracking["experiment_id"]]):
        points = {
            name: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
        found[run.info.run_id] = (
            run.info.run_name,
            run.info.status,
            points,
            files,
            run.data.params,
        )
    return found


def names(records: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((name, status) for name, status, *_ in records.values())


@pytest.mark.matrix
def test_sync_records_a_run_whose_store_was_away(fake_cli: Any) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = f"tracking.uri=http://127.0.0.1:{nobody.getsockname()[1]}"
        fake_cli("run", "--set", away, "--set", "tracking.required=false", **ON)
    run = fake_cli.only_run()
    assert not (run / "tracking.json").exists()
    uri = f"sqlite:///{fake_cli.folder}/elsewhere/store.db"

    first = fake_cli("sync", run.name, "--json", "--tracking-uri", uri, **ON)
    assert first.returncode == 0, first.stderr
    steps = ["prepare_data", "train_baseline", "evaluate"]
    said = json.loads(first.stdout)
    assert (said["recorded"], said["present"]) == (steps, [])
    tracking = json.loads((run / "tracking.json").read_text())
    assert tracking["uri"] == uri == said["tracking"]["uri"]
    assert json.loads((run / "result.json").read_text())["tracking"] == tracking
    recorded = everything(tracking)
    assert names(recorded) == sorted([(run.name, "FINISHED"), *((s, "FINISHED") for s in steps)])
    parent = open_client(uri).get_run(tracking["run_id"])
    assert parent.data.metrics["fp32/accuracy"] == 0.9
    assert parent.info.end_time - parent.info.start_time < 120_000
    check_times(run, tracking)
    # Artifacts lie beside the runs, not in the folder where one stands.
    assert list((fake_cli.runs / "mlflow-artifacts").rglob("result.json"))
    assert not (fake_cli.folder / "mlruns").exists()

    second = fake_cli("sync", run.name, "--tracking-uri", uri, **ON)
    assert second.returncode == 0, second.stderr
    assert "Steps recorded now: none" in second.stdout
    assert everything(tracking) == recorded


def check_times(run: Path, tracking: dict[str, str]) -> None:
    """Check that the records of the steps have the times of the steps."""
    client, ends = open_client(tracking["uri"]), {}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "step_finished":
            ends[event["step"]] = (event["time"], event["seconds"])
    wanted = f"tags.`mlflow.parentRunId` = '{tracking['run_id']}'"
    for child in client.search_runs([tracking["experiment_id"]], wanted):
        end, seconds = ends.pop(child.info.run_name)
        assert child.info.end_time == pytest.approx(end * 1000, abs=2)
        assert child.info.start_time == pytest.approx((end - seconds) * 1000, abs=2)
        for name in child.data.metrics:
            for point in client.get_metric_history(child.info.run_id, name):
                assert point.timestamp == child.info.end_time
    assert ends == {}
    (point,) = client.get_metric_history(tracking["run_id"], "fp32/accuracy")
    (evaluate,) = client.search_runs([tracking["experiment_id"]], "run_name = 'evaluate'")
    assert point.timestamp == evaluate.info.end_time


@pytest.fixture
def folder(tmp_path: Path, new_store: Callable[[Path], str]) -> Any:
    new_store(tmp_path)
    config = load_config(overrides=[f"output={tmp_path}"])
    return create_run(config, pipeline="a:b", cache=True, version="1")


@pytest.mark.parametrize(
    ("status", "recorded"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED")],
)
def test_sync_run_closes_the_record_as_the_run_ended(
    folder: Any, status: str, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_environment(monkeypatch)
    folder.finish(status)
    done = sync_run(folder)
    assert (done.recorded, done.present) == ((), ())
    assert names(everything(done.tracking.to_dict())) == [(folder.run_id, recorded)]


def test_sync_run_refuses_a_run_that_goes_on(folder: Any) -> None:
    with folder.hold(), pytest.raises(StorageError, match="in use by another process"):
        sync_run(folder)


def test_sync_run_tells_that_the_store_is_away(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_environment(monkeypatch)
    folder.finish("finished")
    with pytest.raises(TrackingError, match="can't be reached"):
        sync_run(folder, uri="http://127.0.0.1:1")


def keep_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo with the test what a record leaves for the steps of its process."""
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_ID",
        "QATLINE_TRACKING",
        "QATLINE_PARENT_RUN_ID",
    ):
        monkeypatch.setenv(name, "")
