"""``qatline sweep``: options, table, and whole sweeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_kfp_server import FakeKfpServer
from rich.console import Console
from typer.testing import CliRunner

from qatline.pipelines.cli import sweep_views
from qatline.pipelines.cli.main import app
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.result import RunResult
from qatline.pipelines.sweep.measures import TrialMeasures

pytest.importorskip("optuna")

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


def invoke(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "80", "QATLINE_TRACKING": "off"}).invoke(
        app, ["sweep", *arguments]
    )


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("seed: 1\n")
    return "c.yaml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--over", "qat.epochs=1,x"], "--over qat.epochs=x: qat.epochs: expected an integer"),
        (["--over", "qat.epoch=1"], "--over qat.epoch=1: unknown key 'qat.epoch'; did you mean"),
        (["--over", "qat.epochs=1..3"], "--over qat.epochs: a grid needs a list of values"),
        (["--over", "qat.epochs=1", "--under", "speed<1"], "--under: expected a bound on"),
        (["--over", "qat.epochs=1", "--trials", "3"], "--trials: expected --sampler tpe or random"),
        (["--over", "qat.epochs=1", "--prune", "x"], "--prune"),
        (
            ["--over", "qat.epochs=1", "--prune", "5%", "--host", "http://kubeflow"],
            "--prune: expected a sweep of this machine, received --host http://kubeflow",
        ),
        (
            ["--over", "qat.epochs=1", "--cpus", "1", "--host", "http://kubeflow"],
            "--cpus: expected a sweep of this machine",
        ),
        (
            ["--over", "qat.epochs=1", "--tracking-uri", "http://mlflow"],
            "--tracking-uri: expected --host as well",
        ),
        (["--over", "qat.epochs=1", "--set", "qat.epochs=x"], "--set"),
    ],
)
def test_wrong_options_end_before_the_first_trial(
    config: str, arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = invoke(config, *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("Error: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def trials() -> list[Any]:
    """Return a finished trial of each verdict, and one of each other state."""
    found = []
    states = ["promote", "promote", "reject", "failed", "pruned", "unfinished"]
    for number, state in enumerate(states):
        measured = TrialMeasures()
        if state in ("promote", "reject"):
            measured = TrialMeasures(
                quality=0.97 + number / 1000,
                drop=0.005 - number / 1000,
                latency_ms=0.4 + number / 10,
                size=320_000 + number * 1000,
                verdict=state,
            )
        found.append(
            SimpleNamespace(
                number=number,
                settings={"quantization.calibrator": "entropy", "qat.learning_rate": "1.0e-05"},
                run_id="",
                state="finished" if measured.verdict else state,
                measured=measured,
                problem="the reason\nLog: x" if state in ("failed", "pruned") else "",
                to_dict=lambda number=number: {"number": number},
            )
        )
    return found


def test_table_marks_the_best_trial_in_80_columns(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_views, "run_sweep", lambda plan, *others: _folder(plan) or trials())
    done = invoke(config, "--over", "qat.epochs=1", "--under", "latency_ms<0.45")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (best,) = [line for line in lines if line.startswith("* 0")]
    assert best.split()[-6:] == ["97.00%", "0.50", "0.400", "320", "kB", "best"]
    assert "Best quality with latency_ms<0.45: trial 0" in done.stdout
    assert "Run it  qatline run --config sweep/best.yaml" in done.stdout
    assert "Trial 3 failed: the reason" in done.stdout
    assert "Log: x" not in done.stdout
    for state in ("reject", "failed", "pruned", "unfinished"):
        assert any(line.rstrip().endswith(state) for line in lines), state


def test_no_trial_within_bounds_ends_with_one(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_views, "run_sweep", lambda plan, *others: _folder(plan) or trials())
    done = invoke(config, "--over", "qat.epochs=1", "--under", "latency_ms<0.1", "--json")
    assert done.exit_code == 1
    content = json.loads(done.stdout)
    assert (content["best"], content["config"], len(content["trials"])) == (None, None, 6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_best_config_of_a_cluster_is_submitted_there(
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    new_store: Callable[[Path], str],
) -> None:
    monkeypatch.setattr(sweep_views, "run_sweep", lambda plan, *others: _folder(plan) or trials())
    server = FakeKfpServer()
    try:
        over = ["--over", "qat.epochs=1", "--host", server.url]
        done = invoke(config, *over)
        assert done.exit_code == 2
        assert "tracking.uri: expected the address of an MLflow server" in done.stderr
        over += ["--set", "tracking.uri=http://mlflow:5000", "--tracking-uri"]
        done = invoke(config, *over, "http://127.0.0.1:9")
        assert done.exit_code == 1
        assert "http://127.0.0.1:9, which this machine can't reach" in done.stderr
        done = invoke(config, *over, new_store(tmp_path))
    finally:
        server.close()
    assert done.exit_code == 0, done.output
    assert "Run it  qatline cluster submit --config sweep/best.yaml" in done.stdout


def _folder(plan: Any) -> None:
    plan.folder.mkdir()


def test_concurrent_trials_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    view, progress = sweep_views._TrialView(Console(), 7), RunProgress.of([])
    for event in (
        {"event": "step_finished", "step": "evaluate", "seconds": 2.0, "status": "executed"},
        {"event": "step_finished", "step": "promote", "seconds": 2.0, "status": "reused"},
        {"event": "warning", "step": "", "message": "careful"},
        {"event": "progress", "step": "promote", "phase": "x"},
    ):
        progress.apply(event)
        view.show(event, progress)
    assert capsys.readouterr().out.splitlines() == [
        "  trial 7: evaluate done in 2.0 s",
        "  trial 7: promote reused",
        "  trial 7: warning: careful",
    ]


@pytest.mark.matrix
def test_killed_sweep_goes_on_and_its_best_config_runs(fake_cli: Any, started: Any) -> None:
    (fake_cli.folder / "c.yaml").write_text(
        "seed: 1\nmodel: {options: {train_baseline: {sleep: 60}}}\n"
    )
    arguments = ["sweep", "c.yaml", "--over", "engine.threads=1,2,3", "--workers", "2"]
    arguments += ["--under", "latency_ms<3", "--json"]
    process = started(*arguments)
    _wait_for(fake_cli.runs / "misbehaved-train_baseline")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = fake_cli(*arguments)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert [trial["state"] for trial in content["trials"]] == ["finished"] * 3
    assert [trial["latency_ms"] for trial in content["trials"]] == [1.0, 2.0, 3.0]
    assert content["best"] == 2
    executed = fake_cli.executed()
    # Its first execution was killed.
    assert (executed.count("prepare_data"), executed.count("train_baseline")) == (1, 2)
    assert executed.count("evaluate") == 3
    assert len(list(fake_cli.runs.glob("*/run.json"))) == 3
    run = fake_cli("run", "--config", content["config"], "--json")
    result = RunResult.model_validate_json(run.stdout)
    assert {step.status for step in result.steps} == {"reused"}
    assert result.rows["qat_engine"].latency_ms_p50 == 2.0


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"waited for {path} in vain"
        time.sleep(0.05)


@pytest.mark.slow  # with fake steps: test_killed_sweep_goes_on_and_its_best_config_runs
def test_sweep_of_digits_survives_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qatline.pipelines.cli.main", "sweep", str(DIGITS)]
    for setting in (
        *("data.limit=300", "data.calibration_samples=32", "model.options.width=8"),
        *("training.epochs=1", "qat.epochs=1", "engine.benchmark_seconds=0.05"),
        "gate.max_drop=1",
    ):
        command += ["--set", setting]
    command += ["--over", "quantization.calibrator=max,mse", "--best", "latency", "--json"]
    command += ["--runs-dir", "runs", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if "MLFLOW" not in name}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        while not list(tmp_path.glob("runs/store/train_baseline/*/manifest.json")):
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    content = json.loads(done.stdout)
    assert [trial["state"] for trial in content["trials"]] == ["finished"] * 2, done.stderr
    events = [
        json.loads(line)
        for file in tmp_path.glob("runs/*/events.jsonl")
        for line in file.read_text().splitlines()
    ]
    executed = [
        event["step"]
        for event in events
        if event["event"] == "step_finished" and event["status"] == "executed"
    ]
    assert executed.count("train_baseline") == executed.count("prepare_data") == 1
    assert "trial 2: calibrator=mse" in (tmp_path / content["page"]).read_text()
    run = subprocess.run(
        [
            *(sys.executable, "-m", "qatline.pipelines.cli.main", "run", "--accept-rejected"),
            *("--json", "--quiet", "--config", content["config"]),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {step["status"] for step in json.loads(run.stdout)["steps"]} == {"reused"}
