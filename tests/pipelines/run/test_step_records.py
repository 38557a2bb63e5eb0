"""Runs of steps that the launcher writes from their folders, in a real SQLite store."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import TrackingError
from qatline.components.store.directories import describe, publish
from qatline.components.support import events
from qatline.components.tracking.mlflow_run import MlflowRun
from qatline.components.tracking.store import open_client
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run import step_records
from qatline.pipelines.run.folder import RunFolder, create_run
from qatline.pipelines.run.result import FinishedStep
from qatline.pipelines.run.tracking import ParentRun, open_record

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
ENVIRONMENT = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "QATLINE_TRACKING", "QATLINE_PARENT_RUN_ID"),
)


class Bench:
    """A run with one step, whose launcher is this process."""

    def __init__(self, output: Path) -> None:
        config = load_config(overrides=[f"output={output}", "training.epochs=7"])
        self.folder: RunFolder = create_run(config, pipeline="a:b", cache=True, version="1")
        self.outputs = self.folder.attempt_dir(1)
        self.run: ParentRun = open_record(self.folder, config)
        self.record = json.loads(self.folder.tracking_file.read_text())
        self.client = open_client(self.record["uri"])

    def finish_step(self, key: str = "k1") -> dict[str, Path]:
        """Leave what a finished step leaves; return the artifacts."""
        task = self.outputs / "pipeline" / "train-baseline-component"
        work, final = self.folder.path / f"work-{key}", task / "baseline"
        work.mkdir()
        (work / "history.json").write_text('[{"epoch": 1, "loss": 0.5}]')
        publish(work, final, describe(work, step="train_baseline", key=key, metrics={"n": 1.0}))
        events.emit("step_started", "train_baseline", key=key)
        events.emit("step_finished", "train_baseline", key=key, status="executed", seconds=2.0)
        return {"baseline": final}

    def children(self) -> list[Any]:
        wanted = f"tags.`mlflow.parentRunId` = '{self.record['run_id']}'"
        found: list[Any] = self.client.search_runs([self.record["experiment_id"]], wanted)
        return found


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_store: Callable[[Path], str]
) -> Bench:
    new_store(tmp_path)
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")
    bench = Bench(tmp_path)
    monkeypatch.setenv("QATLINE_EVENTS", str(bench.folder.events_file))
    return bench


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_following_records_a_step_when_it_ends(bench: Bench) -> None:
    with bench.run.recording(bench.outputs):
        bench.finish_step()
        wait_for(lambda: [each.info.status for each in bench.children()] == ["FINISHED"])
        (child,) = bench.children()
    assert (child.info.run_name, child.data.metrics["n"]) == ("train_baseline", 1.0)
    assert child.info.end_time - child.info.start_time == 2000
    assert child.data.params["training.epochs"] == "7"
    assert child.data.tags["qatline.status"] == "executed"
    (point,) = bench.client.get_metric_history(child.info.run_id, "epoch/loss")
    assert (point.step, point.timestamp) == (1, child.info.end_time)
    (point,) = bench.client.get_metric_history(bench.record["run_id"], "train_baseline/loss")
    assert point.timestamp == child.info.end_time


def test_following_warns_and_record_completes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise TrackingError("the store refuses")

    with monkeypatch.context() as patch, bench.run.recording(bench.outputs):
        patch.setattr(step_records, "open_run", refuse)
        artifacts = bench.finish_step()
        text = "the step is not recorded yet: the store refuses"
        wait_for(lambda: text in bench.folder.events_file.read_text())
    steps = [FinishedStep(name="train_baseline"), FinishedStep(name="evaluate")]
    assert bench.run.steps.record(steps, artifacts) == ["train_baseline"]
    assert bench.run.steps.record(steps, artifacts) == []
    assert [each.info.status for each in bench.children()] == ["FINISHED"]


def test_step_that_was_computed_again_has_two_runs(bench: Bench, tmp_path: Path) -> None:
    step = FinishedStep(name="train_baseline")
    assert bench.run.steps.record([step], bench.finish_step()) == ["train_baseline"]
    (bench.outputs / "pipeline").rename(tmp_path / "earlier")
    assert bench.run.steps.record([step], bench.finish_step("k2")) == ["train_baseline"]
    assert sorted(each.data.tags["qatline.key"] for each in bench.children()) == ["k1", "k2"]


@pytest.mark.matrix
def test_record_replaces_an_interrupted_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise TrackingError("killed")

    step, artifacts = FinishedStep(name="train_baseline"), bench.finish_step()
    with monkeypatch.context() as patch:
        patch.setattr(MlflowRun, "record", fail)
        with pytest.raises(TrackingError, match="killed"):
            bench.run.steps.record([step], artifacts)
    (left,) = bench.children()
    assert left.info.status == "RUNNING"
    bench.run.steps.record([step], artifacts)
    (child,) = bench.children()
    assert (child.info.status, child.info.run_id == left.info.run_id) == ("FINISHED", False)


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_close_records_the_step_that_stopped(bench: Bench, status: str) -> None:
    bench.finish_step()
    before = int(time.time() * 1000)
    events.emit("step_started", "evaluate", key="k3")
    bench.run.close(status)
    (child,) = bench.children()  # a resume records the finished one
    assert (child.info.run_name, child.info.status) == ("evaluate", status)
    assert child.data.tags["qatline.key"] == "k3"
    assert "qatline.status" not in child.data.tags
    assert before - 1 <= child.info.start_time <= child.info.end_time
    assert bench.client.get_run(bench.record["run_id"]).info.status == status
