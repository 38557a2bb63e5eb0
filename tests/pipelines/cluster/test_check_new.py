"""Nothing new on a cluster: same data, code and settings as a run that was judged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import TrackingError
from qatline.components.registry.mlflow_registry import MlflowRegistry
from qatline.components.tracking.pipeline_run import find_or_create_parent
from qatline.components.tracking.store import ensure_store, open_client
from qatline.pipelines.cluster.check_new import check_new
from qatline.pipelines.config.run_config import load_config

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


class Store:
    """A tracking store, and the runs of a pipeline in it."""

    def __init__(self, uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.experiment = ensure_store(uri, "nights", (folder / "artifacts").as_uri())
        self.client = open_client(uri)
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "nights")

    def check(self, run: str, sections: dict[str, Any]) -> bool:
        self._monkeypatch.setenv("QATLINE_PIPELINE_RUN_ID", run)
        return check_new(sections)

    def end(self, run: str, verdict: str, status: str = "FINISHED") -> None:
        parent = find_or_create_parent(self.client, self.experiment, run)
        if verdict:
            self.client.set_tag(parent, "qatline.verdict", verdict)
        self.client.set_terminated(parent, status)

    def tags(self, run: str) -> dict[str, str]:
        parent = find_or_create_parent(self.client, self.experiment, run)
        found: dict[str, str] = self.client.get_run(parent).data.tags
        return found


@pytest.fixture
def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_store: Callable[[Path], str]
) -> Store:
    return Store(new_store(tmp_path), tmp_path, monkeypatch)


def sections(*overrides: str) -> dict[str, Any]:
    """The parameters of a pipeline as a pod gets them: every number is a float."""
    found = load_config(overrides=overrides).pipeline_parameters()
    found["training"] = {**found["training"], "epochs": float(found["training"]["epochs"])}
    return found


@pytest.mark.parametrize("verdict", ["promote", "reject"])
def test_equal_inputs_of_a_judged_run_are_nothing_new(store: Store, verdict: str) -> None:
    assert store.check("one", sections())
    store.end("one", verdict)
    assert not store.check("two", sections())
    tags = store.tags("two")
    assert tags["qatline.verdict"] == "nothing new"
    assert tags["mlflow.note.content"].startswith("Nothing new: run pipeline run one had the same")
    store.end("two", "")
    assert not store.check("three", sections())


@pytest.mark.parametrize(
    ("verdict", "status"), [("", "FINISHED"), ("promote", "FAILED"), ("nothing new", "FINISHED")]
)
def test_runs_without_a_verdict_do_not_count(store: Store, verdict: str, status: str) -> None:
    assert store.check("one", sections())
    store.end("one", verdict, status)
    assert store.check("two", sections())


@pytest.mark.matrix
def test_other_settings_and_other_data_are_new(store: Store, tmp_path: Path) -> None:
    data = tmp_path / "d.npz"
    np.savez(data, x=np.zeros(3))
    mine = f"data={{kind: npz, path: {data}}}"
    assert store.check("one", sections(mine))
    store.end("one", "promote")
    assert store.check("two", sections(mine, "seed=1"))
    assert store.check("three", sections(mine, "qat.epochs=3"))
    np.savez(data, x=np.ones(3))
    assert store.check("four", sections(mine))
    store.end("four", "reject")
    assert not store.check("five", sections(mine))
    # Where the result is registered changes nothing of it.
    assert not store.check("six", sections(mine, "registry.name=flowers"))


def test_version_of_another_place_is_nothing_new(store: Store, tmp_path: Path) -> None:
    """It was registered by a run on one machine, whose MLflow run has no fingerprint."""
    named = sections("registry.name=flowers")
    assert store.check("one", named)
    registry = MlflowRegistry(store.client, "flowers", experiment_id=store.experiment)
    registry.ensure()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "model.onnx").write_bytes(b"graph")
    tags = {"qatline.inputs": store.tags("one")["qatline.inputs"], "qatline.state": "promoted"}
    source = registry.upload(registry.new_place(), tmp_path / "files")
    registry.create_version(source, tags, "text")
    assert not store.check("two", named)
    note = store.tags("two")["mlflow.note.content"]
    assert note.startswith("Nothing new: version 1 of flowers (promoted) came from the same")
    assert store.check("three", sections("registry.name=trees"))


def test_a_retried_check_does_not_find_its_own_run(store: Store) -> None:
    assert store.check("one", sections())
    assert store.check("one", sections())


def test_a_store_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(TrackingError, match="can't be reached"):
        check_new(sections())
