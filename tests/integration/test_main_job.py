"""The main job, run once through the real command line.

It takes the default config on the real digits, as a user would start it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.steps import STEP_ARTIFACTS

# MLflow's own use of SQLAlchemy 2.1.
pytestmark = [
    pytest.mark.matrix,
    pytest.mark.filterwarnings(
        "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
    ),
]
STEPS = list(STEP_ARTIFACTS)
ROWS = ("fp32", "fp32_engine", "ptq_engine", "qat_engine")
KEYS = ("quality", "bytes", "latency_ms_p50", "latency_ms_p99", "int8_layers", "weighted_layers")


@dataclass(frozen=True)
class MainJob:
    """A finished default run, its output, and a starter of further runs.

    They share the store.
    """

    folder: Path
    stdout: str
    stderr: str
    run: Callable[..., "subprocess.CompletedProcess[str]"]

    @property
    def run_dir(self) -> Path:
        return min(
            (path.parent for path in self.folder.glob("runs/*/run.json")),
            key=lambda path: path.name,
        )

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.run_dir / "result.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def main_job(tmp_path_factory: pytest.TempPathFactory) -> MainJob:
    folder = tmp_path_factory.mktemp("main-job")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "QATLINE_", "UV"))
    }
    environment = {**kept, "COLUMNS": "80"}

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [
            sys.executable,
            "-c",
            "from qatline.pipelines.cli.main import main; main()",
            "run",
            *arguments,
        ]
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=850,
            check=False,
        )

    done = run()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return MainJob(folder=folder, stdout=done.stdout, stderr=done.stderr, run=run)


def test_it_shows_steps_table_verdict_and_places(main_job: MainJob) -> None:
    text = main_job.stdout
    for place, step in enumerate(STEPS, start=1):
        assert f"step {place}/8 {step}" in text
    assert re.search(r"training \d+/\d+  loss \d\.\d+  accuracy \d+\.\d\d%", text)
    assert re.search(r"calibration \d+/\d+", text)
    for title in ("FP32 Keras", "FP32 engine", "PTQ INT8 engine", "QAT INT8 engine"):
        assert title in text
    assert "Gate: promote" in text
    name = main_job.run_dir.name
    assert f"Report   runs/{name}/report.html" in text
    assert f"qatline ui runs/{name}" in text
    places = ("Run ", "Engines ", "Report ", "MLflow ")
    assert all(len(line) <= 80 for line in text.splitlines()[-25:] if not line.startswith(places))
    assert "Traceback" not in text + main_job.stderr
    assert "warning" not in text.lower()


def test_result_has_every_figure(main_job: MainJob) -> None:
    result = main_job.result
    assert [step["name"] for step in result["steps"]] == STEPS
    assert all(step["status"] == "executed" and step["seconds"] >= 0 for step in result["steps"])
    assert set(ROWS) <= set(result["results"]) <= {*ROWS, "fp16_engine", "bf16_engine"}
    for row in ROWS:
        assert set(KEYS) <= set(result["results"][row])
    fp32, engine, qat = (result["results"][row] for row in ("fp32", "fp32_engine", "qat_engine"))
    assert engine["quality"]["accuracy"] == pytest.approx(fp32["quality"]["accuracy"], abs=0.003)
    assert qat["quality"]["accuracy"] >= fp32["quality"]["accuracy"] - 0.01
    assert qat["int8_layers"] == qat["weighted_layers"] > 10
    assert qat["bytes"] < engine["bytes"]
    assert qat["latency_ms_p50"] > 0
    assert result["gate"]["verdict"] == "promote"
    assert all(reason["passed"] for reason in result["gate"]["reasons"])


def test_report_is_one_file_without_outside_assets(main_job: MainJob) -> None:
    report = Path(main_job.result["report"]).read_text(encoding="utf-8")
    assert report.lstrip().lower().startswith("<!doctype html>")
    assert not re.findall(r"""(?:src|href)=["']https?://""", report)
    assert "QAT" in report


def test_run_folder_holds_every_artifact(main_job: MainJob) -> None:
    for artifact in STEP_ARTIFACTS.values():
        assert (main_job.run_dir / "artifacts" / artifact / "manifest.json").is_file()
    engines = {path.name for path in (main_job.run_dir / "artifacts" / "engines").glob("*.engine")}
    assert {"fp32.engine", "ptq.engine", "qat.engine"} <= engines
    assert json.loads((main_job.run_dir / "run.json").read_text())["status"] == "finished"


def test_mlflow_has_parent_and_step_children(main_job: MainJob) -> None:
    from mlflow import MlflowClient

    tracking = main_job.result["tracking"]
    client = MlflowClient(tracking_uri=tracking["uri"])
    parent = client.get_run(tracking["run_id"])
    assert parent.info.status == "FINISHED"
    assert float(parent.data.params["qat.learning_rate"]) == RunConfig().qat.learning_rate
    assert (
        parent.data.metrics["qat_engine/accuracy"]
        == main_job.result["results"]["qat_engine"]["quality"]["accuracy"]
    )
    assert parent.data.tags["qatline.verdict"] == "promote"
    assert parent.data.tags["data.fingerprint"]
    assert "version.tensorflow" in parent.data.tags
    assert parent.inputs.dataset_inputs[0].dataset.name == "digits"
    files = {file.path for file in client.list_artifacts(tracking["run_id"])}
    assert {"config.yaml", "report.html", "plan.json", "spec.json", "result.json"} <= files
    children = client.search_runs(
        [tracking["experiment_id"]],
        f"tags.`mlflow.parentRunId` = '{tracking['run_id']}'",
        max_results=100,
    )
    by_name = {child.info.run_name: child for child in children}
    assert set(by_name) == set(STEPS)
    assert {child.info.status for child in children} == {"FINISHED"}
    curve = client.get_metric_history(by_name["train_baseline"].info.run_id, "epoch/loss")
    assert len(curve) == int(parent.data.params["training.epochs"])
    engine_files = {
        file.path for file in client.list_artifacts(by_name["build_engine"].info.run_id)
    }
    assert "qat.engine" in engine_files
    assert client.search_logged_models([tracking["experiment_id"]])


def test_a_second_run_reuses_every_step(main_job: MainJob) -> None:
    again = main_job.run("--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert [(step["name"], step["status"]) for step in result["steps"]] == [
        (step, "reused") for step in STEPS
    ]
    assert result["results"] == main_job.result["results"]
    assert result["gate"] == main_job.result["gate"]

    from mlflow import MlflowClient

    tracking = result["tracking"]
    children = MlflowClient(tracking_uri=tracking["uri"]).search_runs(
        [tracking["experiment_id"]],
        f"tags.`mlflow.parentRunId` = '{tracking['run_id']}'",
        max_results=100,
    )
    assert sorted(child.info.run_name for child in children) == sorted(STEPS)
    assert {child.data.tags["qatline.status"] for child in children} == {"reused"}


@pytest.mark.slow  # with fake steps: tests/pipelines/run/test_local.py
def test_new_qat_rate_reruns_from_finetune_qat(main_job: MainJob) -> None:
    other = main_job.run("--json", "--set", "qat.learning_rate=1e-4", "--set", "qat.epochs=1")
    assert other.returncode == 0, other.stderr
    result = json.loads(other.stdout)
    graphs = [
        Path(folder, "artifacts", "onnx", "qat.onnx").read_bytes()
        for folder in (main_job.run_dir, result["run_dir"])
    ]
    # Where both rates keep the calibrated weights, the same graph comes out, and its engine is
    # built already. It is measured again: the fine-tuning's control is evaluated beside it.
    changed = "reused" if graphs[0] == graphs[1] else "executed"
    expected = dict.fromkeys(STEPS, "executed")
    reused = ("prepare_data", "train_baseline", "quantize_model")
    expected |= dict.fromkeys(reused, "reused") | {"build_engine": changed}
    assert {step["name"]: step["status"] for step in result["steps"]} == expected


@pytest.mark.slow
def test_equal_seeds_give_equal_accuracy_and_digests(main_job: MainJob) -> None:
    again = json.loads(main_job.run("--json", "--no-cache").stdout)
    for row in ROWS:
        assert (
            again["results"][row]["quality"]["accuracy"]
            == main_job.result["results"][row]["quality"]["accuracy"]
        )
    for artifact in ("dataset", "baseline", "ptq", "qat", "onnx"):
        first, second = (
            Path(path, "artifacts", artifact, "manifest.json")
            for path in (main_job.run_dir, again["run_dir"])
        )
        assert json.loads(first.read_text())["digest"] == json.loads(second.read_text())["digest"]


@pytest.mark.slow
def test_steps_after_rebuilt_step_are_reused(main_job: MainJob) -> None:
    for step in ("prepare_data", "train_baseline"):
        shutil.rmtree(main_job.folder / "runs" / "store" / step)
    steps = json.loads(main_job.run("--json").stdout)["steps"]
    assert [step["status"] for step in steps] == ["executed"] * 2 + ["reused"] * (len(STEPS) - 2)


def test_data_that_is_missing_ends_with_one_message(main_job: MainJob) -> None:
    wrong = main_job.run("--set", "data.kind=npz", "--set", "data.path=nope.npz")
    assert wrong.returncode == 1
    assert f"data.path: expected a file at {main_job.folder / 'nope.npz'}" in wrong.stderr
    assert "Traceback" not in wrong.stdout + wrong.stderr
