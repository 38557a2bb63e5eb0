"""Sweeps on a cluster, against the fake Kubeflow Pipelines server and a real MLflow store."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import pytest
from fake_kfp_server import FakeKfpServer

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.tracking.pipeline_run import RUN_TAG
from qatline.components.tracking.store import ensure_store
from qatline.pipelines.cluster.progress import ClusterRunError
from qatline.pipelines.cluster.server import ClusterError, connect
from qatline.pipelines.comparison.find_runs import RunChoice, find_runs
from qatline.pipelines.comparison.tracked_runs import TrackedRun
from qatline.pipelines.config.run_config import ConfigReading, load_config, read_config
from qatline.pipelines.sweep import cluster_trials, results
from qatline.pipelines.sweep.cluster_trials import ClusterTrials, check_for_cluster
from qatline.pipelines.sweep.results import write_results
from qatline.pipelines.sweep.runner import SweepInterruptedError, SweepPlan, TrialRun, run_sweep
from qatline.pipelines.sweep.space import Space, parse_parameter
from qatline.pipelines.sweep.study import SweepTrial

pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Pods(FakeKfpServer):
    """A server whose runs end at once, with a record in MLflow; ``before`` may change an answer."""

    before: Callable[[int, dict[str, Any]], None] = staticmethod(lambda number, run: None)

    def __init__(self, store: str) -> None:
        super().__init__()
        self._client = mlflow.MlflowClient(store)
        self._place = ensure_store(store, "qatline")

    def run_service_create_run(self, body: dict[str, Any], **others: Any) -> dict[str, Any]:
        tasks = [
            {"display_name": f"{step}-component", "state": "SUCCEEDED"}
            for step in ("prepare-data", "train-baseline", "quantize-model")
        ]
        run = super().run_service_create_run(body, **others)
        run |= {"state": "SUCCEEDED", "run_details": {"task_details": tasks}}
        self.before(len(self.runs), run)
        self.record(run)
        return run

    def record(self, run: dict[str, Any]) -> None:
        tags = {RUN_TAG: run["run_id"], "qatline.verdict": "promote"}
        record = self._client.create_run(self._place, tags=tags).info.run_id
        measured = {"fp32/accuracy": 0.9, "qat_engine/accuracy": len(self.runs) / 10}
        for name, value in {**measured, "qat_engine/latency_ms_p50": 2.0}.items():
            self._client.log_metric(record, name, value)
        self._client.set_terminated(record)


@pytest.fixture
def store(tmp_path: Path, new_store: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a store in a file, read in place of the server that the config names for the pods."""
    made = new_store(tmp_path)

    def find_there(choice: RunChoice, **options: bool) -> list[TrackedRun]:
        assert choice.uri == "http://127.0.0.1:5000"
        return find_runs(replace(choice, uri=made), **options)

    for module in (cluster_trials, results):
        monkeypatch.setattr(module, "find_runs", find_there)
    return made


@pytest.fixture
def pods(store: str) -> Iterator[Pods]:
    server = Pods(store)
    yield server
    server.close()


@pytest.fixture
def plan(tmp_path: Path, pods: Pods) -> Callable[..., SweepPlan]:
    def make(over: str = "engine.threads=1,2,3", **values: Any) -> SweepPlan:
        def read(texts: Sequence[str]) -> ConfigReading:
            fixed = ["registry.name=line", "tracking.uri=http://mlflow", "engine.backend=openvino"]
            return read_config(overrides=[*fixed, *texts], runs_dir=tmp_path / "runs")

        space = Space(parameters=[parse_parameter(over)], read=read)
        return SweepPlan(
            folder=tmp_path / "sweep",
            space=space,
            host=pods.url,
            tracking_uri="http://127.0.0.1:5000",
            **values,
        )

    return make


def sweep(plan: SweepPlan, shown: list[str] | None = None) -> list[SweepTrial]:
    trials = ClusterTrials(plan, connect(plan.host), experiment="sweeps", poll=0.01)
    lines: list[str] = [] if shown is None else shown

    def start(trial: SweepTrial) -> TrialRun:
        return partial(trials.run, trial, lines.append)

    return run_sweep(plan, start, lambda trial: None)


def test_each_trial_is_a_run_measured_in_mlflow(
    pods: Pods, plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    shown: list[str] = []
    trials = sweep(plan(workers=2), shown)
    assert [trial.state for trial in trials] == ["finished"] * 3
    assert sorted(trial.measured.quality for trial in trials) == [0.1, 0.2, 0.3]
    assert {trial.measured.verdict for trial in trials} == {"promote"}
    assert [trial.run_id in pods.runs for trial in trials] == [True] * 3
    names = {run["display_name"] for run in pods.runs.values()}
    assert names == {f"resnet_digits on digits, trial {number}" for number in (1, 2, 3)}
    assert f"{pods.url}/#/runs/details/{trials[0].run_id}" in shown
    assert "quantize_model  succeeded" in shown
    assert len(sweep(plan(workers=2))) == len(pods.runs) == 3  # nothing is left to run
    result = write_results(plan(), trials)
    assert result.best is not None
    assert result.best.measured.quality == 0.3
    assert result.page is not None
    assert "trial 3: threads=3" in result.page.read_text()
    assert not (tmp_path / "runs").exists()


def test_later_runs_wait_for_the_steps_in_common(
    pods: Pods, plan: Callable[..., SweepPlan]
) -> None:
    seen: list[int] = []
    gate = threading.Timer(0.5, lambda: seen.append(len(pods.runs)) or release())

    def hold(number: int, run: dict[str, Any]) -> None:
        if number == 1:
            run["run_details"] = {"task_details": []}
            run["state"] = "RUNNING"
            gate.start()

    def release() -> None:
        next(iter(pods.runs.values()))["state"] = "SUCCEEDED"

    pods.before = hold
    trials = sweep(plan(workers=3))
    assert [trial.state for trial in trials] == ["finished"] * 3
    assert seen == [1]


def test_interrupted_sweep_waits_for_the_same_run(
    pods: Pods, plan: Callable[..., SweepPlan]
) -> None:
    def interrupt(number: int, run: dict[str, Any]) -> None:
        if number == 2:
            run["state"] = "RUNNING"
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

    pods.before = interrupt
    with pytest.raises(SweepInterruptedError, match="repeat the command"):
        sweep(plan())
    assert len(pods.runs) == 2
    for run in pods.runs.values():
        run["state"] = "SUCCEEDED"
    trials = sweep(plan())
    assert [trial.state for trial in trials] == ["finished"] * 3
    assert len(pods.runs) == 3


def _fail(step: str) -> dict[str, Any]:
    error = {"display_name": f"{step}-component", "state": "FAILED", "error": {"message": "OOM"}}
    return {"state": "FAILED", "run_details": {"task_details": [error]}}


def test_failed_run_fails_its_trial(pods: Pods, plan: Callable[..., SweepPlan]) -> None:
    pods.before = lambda number, run: run.update(_fail("build-engine") if number == 2 else {})
    trials = sweep(plan())
    assert [trial.state for trial in trials] == ["finished", "failed", "finished"]
    assert trials[1].problem.endswith("failed in step build_engine: OOM")
    assert [trial.state for trial in sweep(plan())] == ["finished"] * 3


def test_failure_of_a_common_step_ends_the_sweep(
    pods: Pods, plan: Callable[..., SweepPlan]
) -> None:
    pods.before = lambda number, run: run.update(_fail("train-baseline"))
    with pytest.raises(ClusterRunError, match="step train_baseline: OOM"):
        sweep(plan(workers=3))
    assert len(pods.runs) == 1


def test_unreachable_server_ends_the_sweep(pods: Pods, plan: Callable[..., SweepPlan]) -> None:
    def refuse(**_: object) -> dict[str, object]:
        raise ValueError("quota exceeded")

    pods.run_service_create_run = refuse  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="quota exceeded"):
        sweep(plan())


def test_run_without_a_record_is_not_repeated(
    pods: Pods, plan: Callable[..., SweepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pods, "record", lambda run: None)
        with pytest.raises(TrackingError, match="measures of a trial can't be read"):
            sweep(plan())
    (run,) = pods.runs.values()
    pods.record(run)
    assert [trial.state for trial in sweep(plan())] == ["finished"] * 3
    assert len(pods.runs) == 3


def test_other_server_needs_another_folder(plan: Callable[..., SweepPlan], tmp_path: Path) -> None:
    made = plan()
    sweep(made)
    local = SweepPlan(folder=made.folder, space=made.space)
    with pytest.raises(ConfigError, match="contains a sweep with --host="):
        run_sweep(local, lambda trial: pytest.fail("a trial started"), lambda trial: None)


def test_config_needs_what_pods_reach(tmp_path: Path) -> None:
    check_for_cluster(load_config(overrides=["tracking.uri=http://mlflow", "seed=1"]))
    with pytest.raises(ConfigError, match=r"tracking.uri: expected the address of an MLflow"):
        check_for_cluster(load_config(overrides=["tracking.uri=sqlite:///x.db"]))
    folder = ["data.kind=folder", f"data.path={tmp_path}"]
    config = load_config(overrides=["tracking.uri=http://mlflow", *folder])
    with pytest.raises(ConfigError, match="modules and addresses that the pods have"):
        check_for_cluster(config)
