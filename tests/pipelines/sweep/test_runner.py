"""Sweeps whose runs are stand-ins: order, resumption, failures, interruptions, pruning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError, StorageError
from qatline.components.artifacts import ResultRow
from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.support.turns import TURNS_VARIABLE
from qatline.pipelines.config.run_config import ConfigReading, read_config
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.local import RunFailedError, RunOutcome
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.progress_view import SilentView
from qatline.pipelines.run.result import GateResult, RunResult
from qatline.pipelines.sweep import runner
from qatline.pipelines.sweep.measures import parse_bound
from qatline.pipelines.sweep.runner import (
    SweepInterruptedError,
    SweepPlan,
    TrialRun,
    run_here,
    run_sweep,
)
from qatline.pipelines.sweep.space import Space, parse_parameter
from qatline.pipelines.sweep.study import SweepTrial

pytest.importorskip("optuna")


@dataclass
class Runs:
    """Stands in for ``execute``; more threads are more accurate and slower."""

    threads: list[int] = field(default_factory=list)
    again: list[bool] = field(default_factory=list)
    before: Callable[[int, Callable[[RunProgress], None]], None] = lambda threads, check: None

    def execute(self, folder: RunFolder, view: Any, *, again: bool, check: Any) -> RunOutcome:
        config = folder.config()
        threads = config.engine.threads
        self.threads.append(threads)
        self.again.append(again)
        assert config.registry.name is None
        try:
            self.before(threads, check)
        except ZeroDivisionError as error:
            raise RunFailedError(
                "step failed", folder=folder, step=str(error), exit_code=1, log_tail=""
            ) from error
        rows = {
            "fp32": ResultRow(accuracy=0.9),
            "qat_engine": ResultRow(accuracy=threads / 10, latency_ms_p50=threads, bytes=1),
        }
        gate = GateResult(verdict="promote")
        result = RunResult(run_id=folder.run_id, run_dir=str(folder.path), rows=rows, gate=gate)
        return RunOutcome(folder=folder, result=result, seconds=1.0)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    stand_in = Runs()
    monkeypatch.setattr(runner, "execute", stand_in.execute)
    return stand_in


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., SweepPlan]:
    def make(*over: str, overrides: Sequence[str] = (), **values: Any) -> SweepPlan:
        def read(texts: Sequence[str]) -> ConfigReading:
            texts = ["registry.name=line", *overrides, *texts]
            return read_config(overrides=texts, runs_dir=tmp_path / "runs")

        parameters = [parse_parameter(text) for text in over or ("engine.threads=1,2,3",)]
        space = Space(parameters=parameters, read=read)
        return SweepPlan(folder=tmp_path / "sweep", space=space, **values)

    return make


def sweep(plan: SweepPlan) -> list[SweepTrial]:
    def start(trial: SweepTrial) -> TrialRun:
        return partial(run_here, plan, trial, SilentView(), "m:p")

    return run_sweep(plan, start, lambda trial: None)


def states(trials: Sequence[SweepTrial]) -> list[tuple[str, str]]:
    return [(trial.settings["engine.threads"], trial.state) for trial in trials]


def interrupt(threads: int, check: Callable[[RunProgress], None]) -> None:
    if threads == 2:
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            check(RunProgress.of([]))
            time.sleep(0.01)


def test_sweep_runs_each_combination_once(runs: Runs, plan: Callable[..., SweepPlan]) -> None:
    trials = sweep(plan())
    assert states(trials) == [("1", "finished"), ("2", "finished"), ("3", "finished")]
    assert [trial.measured.quality for trial in trials] == [0.1, 0.2, 0.3]
    assert len({trial.run_id for trial in trials}) == 3
    again = sweep(plan(workers=2, goal="latency", bounds=[parse_bound("size<9")]))
    assert [trial.to_dict() for trial in again] == [trial.to_dict() for trial in trials]
    assert runs.threads == [1, 2, 3]


def test_interrupted_sweep_continues_its_runs(runs: Runs, plan: Callable[..., SweepPlan]) -> None:
    runs.before = interrupt
    with pytest.raises(SweepInterruptedError, match=r"SIGTERM.*repeat the command") as raised:
        sweep(plan())
    assert raised.value.exit_code == 128 + signal.SIGTERM
    runs.before = Runs.before
    trials = sweep(plan())
    assert states(trials) == [("1", "finished"), ("2", "finished"), ("3", "finished")]
    assert (runs.threads, runs.again) == ([1, 2, 2, 3], [False, False, True, False])


def test_removed_run_of_a_trial_starts_afresh(
    runs: Runs, plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    runs.before = interrupt
    with pytest.raises(SweepInterruptedError):
        sweep(plan())
    runs.before = Runs.before
    for record in tmp_path.glob("runs/*/run.json"):
        record.unlink()
    assert states(sweep(plan()))[1] == ("2", "finished")
    assert runs.again == [False] * 4


def test_failed_trials_are_repeated_by_the_next_sweep(
    runs: Runs, plan: Callable[..., SweepPlan]
) -> None:
    def fail(threads: int, check: Any) -> None:
        if threads == 1:
            raise ZeroDivisionError("build_engine")

    runs.before = fail
    trials = sweep(plan())
    assert states(trials) == [("1", "failed"), ("2", "finished"), ("3", "finished")]
    assert trials[0].problem == "step failed"
    runs.before = Runs.before
    repeated = sweep(plan())
    assert states(repeated) == [("2", "finished"), ("3", "finished"), ("1", "finished")]
    assert runs.threads == [1, 2, 3, 1]


def test_failure_of_a_common_step_ends_the_sweep(
    runs: Runs, plan: Callable[..., SweepPlan]
) -> None:
    def fail(threads: int, check: Any) -> None:
        raise ZeroDivisionError("train_baseline")

    runs.before = fail
    with pytest.raises(RunFailedError, match="step failed"):
        sweep(plan())
    assert runs.threads == [1]


def test_trial_without_measures_fails(
    runs: Runs, plan: Callable[..., SweepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ResultRow, "value", None)
    (trial,) = sweep(plan("engine.threads=1"))
    assert (trial.state, trial.problem) == ("failed", "its quality was not measured")


def test_contradicting_values_fail_their_trial(runs: Runs, plan: Callable[..., SweepPlan]) -> None:
    trials = sweep(plan("engine.threads=1", "qat.batch_size=2,8", "qat.accumulate_steps=4"))
    assert states(trials) == [("1", "failed"), ("1", "finished")]
    assert "accumulate_steps" in trials[0].problem


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_samplers_stop_at_the_number_of_trials(
    runs: Runs, plan: Callable[..., SweepPlan], sampler: Any
) -> None:
    over = ("engine.threads=1..4", "qat.learning_rate=1e-5..1e-3:log")
    bounds = [parse_bound("latency_ms<3")]
    first = sweep(plan(*over, sampler=sampler, trials=2, bounds=bounds))
    trials = sweep(plan(*over, sampler=sampler, trials=4, bounds=bounds))
    assert len(trials) == 4
    assert [trial.settings for trial in trials[:2]] == [trial.settings for trial in first]
    assert all(1 <= int(trial.settings["engine.threads"]) <= 4 for trial in trials)
    rates = [float(trial.settings["qat.learning_rate"]) for trial in trials]
    assert all(1e-5 <= rate <= 1e-3 for rate in rates)
    assert len(set(rates)) > 1


@pytest.mark.parametrize(
    ("over", "values", "message"),
    [
        (("engine.threads=1,2",), {}, r"contains a sweep with --over=.*1,2,3.*received.*1,2'"),
        ((), {"overrides": ["qat.epochs=9"]}, r"qat.epochs=\d, received 9"),
        ((), {"sampler": "random"}, "--sampler='grid', received 'random'"),
    ],
)
def test_other_sweep_in_the_same_folder_is_refused(
    runs: Runs, plan: Callable[..., SweepPlan], over: tuple[str], values: Any, message: str
) -> None:
    sweep(plan())
    with pytest.raises(ConfigError, match=message):
        sweep(plan(*over, **values))
    assert len(runs.threads) == 3


@pytest.mark.parametrize("content", [b"x" * 5000, b"SQLite format 3\0" + b"x" * 5000])
def test_damaged_database_is_reported(
    runs: Runs, plan: Callable[..., SweepPlan], content: bytes
) -> None:
    folder = plan().folder
    folder.mkdir()
    (folder / "sweep.db").write_bytes(content)
    with pytest.raises(StorageError, match=r"can.t be read as the database of a sweep"):
        sweep(plan())


def test_folder_of_another_process_is_refused(
    runs: Runs, plan: Callable[..., SweepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plan().folder
    folder.mkdir()
    code = (
        "import sys, time; from pathlib import Path; from qat_lib.support.locks import file_lock\n"
        "with file_lock(Path(sys.argv[1]), owner='77'): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / ".lock")], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with pytest.raises(StorageError, match="run by another process \\(pid 77\\)"):
                sweep(plan())
        finally:
            process.kill()


def test_file_as_folder_is_refused(plan: Callable[..., SweepPlan]) -> None:
    plan().folder.write_text("")
    with pytest.raises(ConfigError, match="--output-dir: expected a folder"):
        sweep(plan())


def test_concurrent_trials_take_turns_on_their_cpus(
    runs: Runs, plan: Callable[..., SweepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, turns = [], []
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: limits.append(cpus))
    runs.before = lambda threads, check: turns.append(os.environ.get(TURNS_VARIABLE))
    sweep(plan("engine.threads=1,2", workers=2, cpus=1))
    assert limits == [[min(os.sched_getaffinity(0))]]
    assert turns == [str(plan().folder / ".turns")] * 2
    assert TURNS_VARIABLE not in os.environ


def test_hopeless_trial_is_pruned(
    runs: Runs, plan: Callable[..., SweepPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "calibrated_drop", lambda folder, progress: drops.pop(0))
    drops = [0.2, 0.05, None]

    def calibrate(threads: int, check: Callable[[RunProgress], None]) -> None:
        progress = RunProgress.of([])
        check(progress)
        progress.apply({"event": "step_finished", "step": "quantize_model", "metrics": {"a": 1}})
        check(progress)
        check(progress)

    runs.before = calibrate
    trials = sweep(plan(prune=0.1))
    assert states(trials) == [("1", "pruned"), ("2", "finished"), ("3", "finished")]
    assert trials[0].problem == "the calibrated model loses 20.00% on the validation part"
    assert states(sweep(plan(prune=0.1))) == states(trials)


@pytest.mark.parametrize(
    ("metric", "before", "after", "drop"),
    [(ACCURACY, 0.9, 0.6, 0.3), (Metric(name="mae", higher_is_better=False), 2.0, 3.0, 0.5)],
)
def test_calibrated_drop_compares_validation_values(
    metric: Metric,
    before: float,
    after: float,
    drop: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Task:
        primary = metric

    monkeypatch.setattr(runner, "open_task", lambda info: Task())
    monkeypatch.setattr(runner.Dataset, "info", lambda self: None)
    (tmp_path / "run.json").write_text('{"run_id": "r", "pipeline": "p"}')
    (tmp_path / "steps/001/qatline/prepare-data-component/dataset").mkdir(parents=True)
    folder, progress = RunFolder(path=tmp_path), RunProgress.of([])
    name = f"validation_{metric.name}"
    for step, value in (
        ("prepare_data", None),
        ("train_baseline", before),
        ("quantize_model", after),
    ):
        assert runner.calibrated_drop(folder, progress) is None
        metrics = {} if value is None else {name: value}
        progress.apply({"event": "step_finished", "step": step, "metrics": metrics})
    assert runner.calibrated_drop(folder, progress) == pytest.approx(drop)
    progress.apply({"event": "step_finished", "step": "finetune_qat", "metrics": {name: 1.0}})
    assert runner.calibrated_drop(folder, progress) is None
