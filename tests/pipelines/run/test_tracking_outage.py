"""The tracking server dies in the middle of a run: told soon, and mended by a resume."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import MlflowServer

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
STEPS = ["prepare_data", "train_baseline", "evaluate"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MlflowServer]:
    folder = tmp_path / "server"
    folder.mkdir()
    started = MlflowServer(folder)
    started.start()
    yield started
    started.kill()


@pytest.mark.slow  # waits for most of half a minute
def test_server_that_dies_is_told_and_mended(fake_cli: Any, server: MlflowServer) -> None:
    slow = ["--set", "model.options={train_baseline: {sleep: 8}}"]
    run = fake_cli.start("run", "--set", f"tracking.uri={server.uri}", *slow, QATLINE_TRACKING="")
    wait_for(lambda: "train_baseline" in fake_cli.executed())
    server.kill()
    killed = time.monotonic()
    _, err = run.communicate(timeout=120)
    assert time.monotonic() - killed < 60
    assert run.returncode == 1
    assert "can't be reached" in err
    folder = fake_cli.only_run()
    assert f"qatline resume {folder.name}" in err

    server.start()
    resumed = fake_cli("resume", QATLINE_TRACKING="")
    assert resumed.returncode == 0, resumed.stderr
    assert fake_cli.executed() == STEPS
    tracking = json.loads((folder / "tracking.json").read_text())
    assert statuses(tracking) == {
        folder.name: ["FINISHED"],
        "prepare_data": ["FINISHED"],
        "train_baseline": ["FINISHED"],
        "evaluate": ["FINISHED"],
    }


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def statuses(tracking: dict[str, str]) -> dict[str, list[str]]:
    from qatline.components.tracking.store import open_client

    found: dict[str, list[str]] = {}
    runs: list[Any] = open_client(tracking["uri"]).search_runs([tracking["experiment_id"]])
    for run in sorted(runs, key=lambda each: each.info.start_time):
        found.setdefault(run.info.run_name, []).append(run.info.status)
    return found
