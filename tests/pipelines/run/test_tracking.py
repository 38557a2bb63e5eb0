"""MLflow runs of a pipeline run: fake steps, real SQLite store."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PASSWORD, PostgresServer, driver_folder

from qatline.components.tracking.store import ensure_store
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.folder import create_run
from qatline.pipelines.run.tracking import close_dead_runs

# MLflow's own use of SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)
ON = {"QATLINE_TRACKING": ""}


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing answers."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


@pytest.mark.matrix
def test_required_server_that_is_away_ends_the_run(fake_cli: Any, nobody: str) -> None:
    failed = fake_cli("run", "--set", f"tracking.uri={nobody}", **ON)
    assert failed.returncode == 1
    assert f"the tracking server {nobody} can't be reached" in failed.stderr
    assert "tracking.required=false" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert fake_cli.executed() == []


@pytest.mark.matrix
def test_optional_server_that_is_away_is_a_warning(fake_cli: Any, nobody: str) -> None:
    done = fake_cli(
        "run", "--set", f"tracking.uri={nobody}", "--set", "tracking.required=false", **ON
    )
    assert done.returncode == 0, done.stderr
    assert "warning: this run is not tracked" in done.stdout
    assert "MLflow" not in done.stdout.rpartition("Run ")[2]


@pytest.mark.matrix
def test_killed_run_resumes_its_own_record(fake_cli: Any) -> None:
    failed = fake_cli(
        "run",
        "--set",
        "model.options={train_baseline: {kill: true}}",
        MLFLOW_RUN_ID="not-ours",
        **ON,
    )
    assert failed.returncode == 1
    run = fake_cli.only_run()
    before = json.loads((run / "tracking.json").read_text())
    assert before["uri"] == f"sqlite:///{fake_cli.runs}/mlflow.db"
    assert statuses(before) == {"prepare_data": ["FINISHED"], "train_baseline": ["FAILED"]}
    assert parent(before).info.status == "FAILED"

    resumed = fake_cli("resume", **ON)
    assert resumed.returncode == 0, resumed.stderr
    assert f"qatline ui runs/{run.name}" in resumed.stdout
    assert json.loads((run / "tracking.json").read_text()) == before
    assert statuses(before) == {
        "prepare_data": ["FINISHED"],
        "train_baseline": ["FAILED", "FINISHED"],
        "evaluate": ["FINISHED"],
    }
    assert parent(before).info.status == "FINISHED"
    assert parent(before).data.metrics["fp32/accuracy"] == 0.9
    assert parent(before).data.params["training.epochs"]
    assert not [name for name in parent(before).data.params if name.startswith("cluster")]


@pytest.mark.matrix
def test_run_in_postgres_keeps_password_out_and_artifacts_near(fake_cli: Any) -> None:
    server = PostgresServer()
    try:
        server.start()
        uri, path = f"tracking.uri={server.uri}", fake_cli.environment()["PYTHONPATH"]
        secret = {"PGPASSWORD": PASSWORD, "PYTHONPATH": f"{path}{os.pathsep}{driver_folder()}"}
        done = fake_cli("run", "--set", uri, "--json", **secret, **ON)
    finally:
        server.remove()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tracking"]["uri"] == server.uri
    assert sorted(path.name for path in fake_cli.folder.iterdir()) == ["runs"]
    assert list((fake_cli.runs / "mlflow-artifacts").rglob("result.json"))
    written = [path for path in fake_cli.folder.rglob("*") if path.is_file()]
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []
    assert PASSWORD not in done.stdout + done.stderr


def parent(tracking: dict[str, str]) -> Any:
    return client(tracking).get_run(tracking["run_id"])


def statuses(tracking: dict[str, str]) -> dict[str, list[str]]:
    children = client(tracking).search_runs(
        [tracking["experiment_id"]], f"tags.`mlflow.parentRunId` = '{tracking['run_id']}'"
    )
    found: dict[str, list[str]] = {}
    for child in sorted(children, key=lambda each: each.info.start_time):
        found.setdefault(child.info.run_name, []).append(child.info.status)
    return found


def client(tracking: dict[str, str]) -> Any:
    from mlflow import MlflowClient

    assert not Path("mlflow.db").exists(), f"something wrote an MLflow store into {os.getcwd()}"
    return MlflowClient(tracking_uri=tracking["uri"])


# MLflow's own use of SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)


def test_close_dead_runs_closes_what_nobody_works_on(
    tmp_path: Path, new_store: Callable[[Path], str]
) -> None:
    from mlflow import MlflowClient

    uri = new_store(tmp_path)
    experiment = ensure_store(uri, "qatline", (tmp_path / "artifacts").as_uri())
    client = MlflowClient(uri)
    config = load_config(overrides=[f"output={tmp_path}"])
    folders = [create_run(config, pipeline="a:b", cache=True, version="1") for _ in range(2)]
    dead, alive = (
        client.create_run(experiment, tags={"qatline.run_dir": str(folder.path)})
        for folder in folders
    )
    elsewhere = client.create_run(experiment, tags={"qatline.run_dir": "/nowhere/20260101-a"})
    child = client.create_run(experiment, tags={"mlflow.parentRunId": dead.info.run_id})
    with folders[1].hold():
        close_dead_runs(client, experiment)
    now = [client.get_run(run.info.run_id).info.status for run in (dead, child, alive, elsewhere)]
    assert now == ["KILLED", "KILLED", "RUNNING", "RUNNING"]
    assert [folder.record().status for folder in folders] == ["interrupted", "running"]
