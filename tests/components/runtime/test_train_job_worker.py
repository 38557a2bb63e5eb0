"""A worker's process: exit codes and the last lines of its log."""

import subprocess
import sys
from pathlib import Path

import pytest

from qatline.components.runtime import train_job_worker as worker
from qatline.components.trainjob.task import WorkerTask, to_json

ROOT = Path(__file__).parents[3]


def test_run_pod_runs_by_the_command_of_the_runtime(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qatline.components.runtime.train_job_worker"],
        env={"PYTHONPATH": str(ROOT), "QATLINE_WORKER_TASK": "{"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("ConfigError: QATLINE_WORKER_TASK: expected")


def test_run_pod_waits_for_the_names_of_the_others(
    task: WorkerTask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = {
        "QATLINE_WORKER_TASK": to_json(task),
        "QATLINE_JOBSET": "t.invalid",
        "QATLINE_WORKERS": "2",
        "JOB_COMPLETION_INDEX": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TF_CONFIG", "")
    monkeypatch.setattr(worker, "START_PATIENCE", 0.0)
    assert worker.run_pod() == 1
    assert "StepError: Expected an address of every worker within 0 s" in caplog.text
