"""A scheduled run that finds nothing new: fake steps, real store and registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.tracking.database import database_uri
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.novelty import inputs_fingerprint

# MLflow's own use of SQLAlchemy 2.1.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")

SETTINGS = ["--set", "registry.name=line-3", "--set", "retrain.only_new=true"]


@pytest.mark.matrix
def test_run_ends_early_where_the_same_inputs_were_judged(
    fake_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fake_cli("run", "--quiet", *SETTINGS, QATLINE_TRACKING="")
    assert first.returncode == 0, first.stderr
    assert len(fake_cli.executed()) == 3
    from mlflow import MlflowClient

    monkeypatch.chdir(fake_cli.folder)
    config = load_config(None, overrides=[SETTINGS[1], SETTINGS[3]])
    _register(fake_cli.runs, inputs_fingerprint(config), tmp_path / "files", monkeypatch)
    second = fake_cli("run", "--json", *SETTINGS, QATLINE_TRACKING="")
    assert second.returncode == 0, second.stderr
    result = json.loads(second.stdout)
    assert "version 1 of line-3 (rejected)" in result["nothing_new"]
    assert result["steps"] == []
    assert result["tracking"]["run_id"]
    assert len(fake_cli.executed()) == 3
    record = json.loads((Path(result["run_dir"]) / "run.json").read_text())
    assert record["status"] == "finished"
    tracked = MlflowClient(database_uri(fake_cli.runs / "mlflow.db")).get_run(
        result["tracking"]["run_id"]
    )
    assert tracked.data.tags["qatline.verdict"] == "nothing new"
    assert tracked.data.tags["mlflow.note.content"].startswith("Nothing new: version 1")
    listed = json.loads(fake_cli("runs", "list", "--json").stdout)["runs"]
    assert listed[-1]["verdict"] == "nothing new"
    shown = fake_cli("run", "--quiet", *SETTINGS, QATLINE_TRACKING="")
    assert "Nothing new: version 1 of line-3" in shown.stdout
    changed = fake_cli("run", "--json", *SETTINGS, "--set", "seed=7", QATLINE_TRACKING="")
    assert len(json.loads(changed.stdout)["steps"]) == 3


def _register(runs: Path, fingerprint: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a version that was judged on these inputs."""
    from mlflow import MlflowClient

    uri = database_uri(runs / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("qatline").experiment_id
    registry = MlflowRegistry(client, "line-3", experiment_id=experiment)
    registry.ensure()
    files.mkdir()
    (files / "model.onnx").write_bytes(b"graph")
    tags = {"qatline.inputs": fingerprint, "qatline.state": "rejected"}
    registry.create_version(registry.upload(registry.new_place(), files), tags, "text")
