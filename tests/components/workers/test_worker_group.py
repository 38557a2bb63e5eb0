"""A training step with workers on this machine: killed, resumed, and what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qatline.components.store.directories import describe, publish
from qatline.components.workers.worker_config import TF_CONFIG_VARIABLE
from qatline.components.workers.worker_group import local_workers

ROOT = Path(__file__).parents[3]
EPOCHS = 4
CALL = """
import json, sys
from qatline.components.runtime.step import run_component
run_component("train_baseline", **json.loads(sys.argv[1]))
"""


def step(folder: Path, dataset: Path, workers: int) -> subprocess.Popen[bytes]:
    training = {"epochs": EPOCHS, "workers": workers, "batch_size": 100, "augment": "flip_crop"}
    call = {
        "settings": {"training": training, "model": {"options": {"width": 8}}},
        "seed": 1,
        "inputs": {"dataset": str(dataset)},
        "output": str(folder / "out"),
    }
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "QATLINE_STORE": str(folder / "store"),
        "QATLINE_EVENTS": str(folder / "events.jsonl"),
        "TMPDIR": str(folder / "temporary"),
    }
    (folder / "temporary").mkdir(exist_ok=True)
    command = [sys.executable, "-c", CALL, json.dumps(call)]
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + 300
    while not (value := condition()):
        assert process.poll() is None, "the step ended before it was expected to"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def weights(folder: Path) -> list[np.ndarray]:
    import keras

    model = keras.models.load_model(folder / "out" / "model.keras")
    return [np.asarray(value) for value in model.get_weights()]


@pytest.fixture
def dataset(tmp_path: Path, digits_dataset: Path) -> Path:
    work, final = tmp_path / "work", tmp_path / "dataset"
    shutil.copytree(digits_dataset, work)
    publish(work, final, describe(work))
    return final


@pytest.mark.slow
def test_step_whose_worker_is_killed_resumes(tmp_path: Path, dataset: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    first = step(killed, dataset, 2)
    wait_for(lambda: list(killed.glob("store/*/.*.checkpoints/*.state")), first)
    (worker,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGKILL)
    assert first.wait(150) == 1
    (error,) = events(killed, "error")
    assert "worker 1 of 2 ended with SIGKILL" in error["message"]
    assert error["expected"]
    assert not (killed / "out").exists()

    assert step(killed, dataset, 2).wait(600) == 0
    assert step(whole, dataset, 2).wait(600) == 0
    for found, expected in zip(weights(killed), weights(whole), strict=True):
        np.testing.assert_array_equal(found, expected)
    history = json.loads((killed / "out" / "history.json").read_text())
    assert [row["epoch"] for row in history] == list(range(1, EPOCHS + 1))
    assert all(row["images_per_second_per_worker"] > 0 for row in history)
    resumed = [event["current"] for event in events(killed, "progress")]
    assert resumed.count(max(resumed)) == 1, "worker 0 alone reports"
    for folder in (killed, whole):
        assert not list(folder.glob("store/*/.*")), "no checkpoint, no lock, no work is left"
        assert not list((folder / "temporary").glob("qatline-worker*"))


def test_one_worker_starts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TF_CONFIG_VARIABLE, raising=False)
    monkeypatch.setattr(subprocess, "Popen", None)
    with local_workers("train_baseline", 1, {}):
        assert TF_CONFIG_VARIABLE not in os.environ
    monkeypatch.setenv(TF_CONFIG_VARIABLE, "named already")
    with local_workers("train_baseline", 3, {}):
        assert os.environ[TF_CONFIG_VARIABLE] == "named already"
