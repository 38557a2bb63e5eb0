"""Runs that a killed process left open, in a real SQLite store."""

from pathlib import Path

import pytest

from qatline.components.tracking.database import database_uri
from qatline.components.tracking.store import ensure_store
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.dead_runs import close_dead_runs
from qatline.pipelines.run.folder import create_run

# MLflow's own use of SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)


def test_close_dead_runs_closes_what_nobody_works_on(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = database_uri(tmp_path / "mlflow.db")
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
