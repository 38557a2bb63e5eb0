"""The registry of the real MLflow, on a SQLite store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import TrackingError
from qatline.components.registry.lock import ENDED_TAG, OWNER, registry_lock
from qatline.components.registry.mlflow_registry import MlflowRegistry, open_registry
from qatline.components.registry.registry import ModelState
from qatline.components.settings import RegistrySettings
from qatline.components.tracking.store import ensure_store

# SQLAlchemy 2.1 about a loader that MLflow 3.17 uses, and MLflow about its own type hints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, str]:
    """A SQLite store and the id of an experiment in it."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    return uri, ensure_store(uri, "tests", (folder / "artifacts").as_uri())


@pytest.fixture
def client(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    return MlflowClient(store[0])


@pytest.fixture
def registry(store: tuple[str, str], client: Any, request: pytest.FixtureRequest) -> MlflowRegistry:
    return MlflowRegistry(client, request.node.name[:60], experiment_id=store[1])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files" / "baseline").mkdir(parents=True)
    (tmp_path / "files" / "model.onnx").write_bytes(b"graph")
    (tmp_path / "files" / "baseline" / "model.keras").write_bytes(b"float")
    return tmp_path / "files"


def version_of(registry: MlflowRegistry, files: Path, **tags: str) -> int:
    source = registry.upload(registry.new_place(), files)
    return registry.create_version(source, tags, "a description")


@pytest.mark.matrix
def test_missing_model_is_empty(registry: MlflowRegistry) -> None:
    assert registry.state() == ModelState()
    assert registry.versions() == []


def test_ensure_twice_is_no_error(registry: MlflowRegistry) -> None:
    registry.ensure()
    registry.ensure()
    assert registry.state() == ModelState()


def test_tags_are_set_and_deleted(registry: MlflowRegistry) -> None:
    registry.ensure()
    registry.set_tag("qatline.a", "1")
    registry.set_tag("qatline.a", "x" * 10_000)
    assert len(registry.state().tags["qatline.a"]) == 4900
    registry.delete_tag("qatline.a")
    registry.delete_tag("qatline.a")
    assert registry.state().tags == {}


def test_aliases_move_and_go(registry: MlflowRegistry, files: Path) -> None:
    registry.ensure()
    first, second = version_of(registry, files), version_of(registry, files)
    registry.set_alias("champion", first)
    registry.set_alias("champion", second)
    assert registry.state().aliases == {"champion": second}
    registry.delete_alias("champion")
    registry.delete_alias("champion")
    assert registry.state().aliases == {}


def test_versions_keep_tags_description_and_files(
    registry: MlflowRegistry, files: Path, client: Any, tmp_path: Path
) -> None:
    registry.ensure()
    number = version_of(registry, files, **{"qatline.state": "pending"})
    registry.set_version_tags(number, {"qatline.state": "promoted", "qatline.data": "f" * 64})
    (found,) = registry.versions()
    assert (found.number, found.state, found.tags["qatline.data"]) == (1, "promoted", "f" * 64)
    assert found.created > 1e12
    assert client.get_model_version(registry.name, "1").description == "a description"
    (tmp_path / "copy").mkdir()
    registry.download(number, tmp_path / "copy")
    assert (tmp_path / "copy" / "model.onnx").read_bytes() == b"graph"
    assert (tmp_path / "copy" / "baseline" / "model.keras").read_bytes() == b"float"


@pytest.mark.parametrize("name", ["mobilenetv2_1.00_224", "модель", "-", "x" * 200, "a b"])
def test_registry_takes_every_name_that_the_config_takes(
    store: tuple[str, str], client: Any, files: Path, name: str
) -> None:
    assert RegistrySettings(name=name).name == name
    registry = MlflowRegistry(client, name, experiment_id=store[1])
    registry.ensure()
    registry.set_alias("champion", version_of(registry, files))
    assert client.get_model_version_by_alias(name, "champion").version == 1
    assert [version.number for version in registry.versions()] == [1]


def test_discard_upload_removes_files_of_no_version(
    registry: MlflowRegistry, files: Path, client: Any, store: tuple[str, str]
) -> None:
    registry.ensure()
    place = registry.new_place()
    registry.upload(place, files)
    name = place.partition("/")[2]
    assert len(client.search_logged_models([store[1]], filter_string=f"name = '{name}'")) == 1
    registry.discard_upload(place)
    registry.discard_upload(place)
    assert len(client.search_logged_models([store[1]], filter_string=f"name = '{name}'")) == 0


def test_secrets_stay_out_of_the_registry(registry: MlflowRegistry) -> None:
    registry.ensure()
    registry.set_tag("qatline.run", "s3://me:secret@host/data")
    assert "secret" not in registry.state().tags["qatline.run"]


def test_lock_is_held_and_released(registry: MlflowRegistry) -> None:
    registry.ensure()
    with registry_lock(registry, owner="run 1", lease=60) as lease:
        lease.check()
        assert registry.lock(1).state().tags[OWNER] == "run 1"
        assert registry.name in registry.names()
        assert registry.lock(1).name not in registry.names()
    assert registry.lock(1).state() == ModelState()
    assert list(registry.state().tags) == [f"{ENDED_TAG}1"]


@pytest.mark.parametrize("removed", [False, True])
def test_ensure_creates_once(
    registry: MlflowRegistry, client: Any, monkeypatch: pytest.MonkeyPatch, *, removed: bool
) -> None:
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore

    registry.ensure({"qatline.owner": "first"})
    look = SqlAlchemyStore.get_registered_model

    def remove_and_look(store: Any, name: str) -> Any:
        monkeypatch.undo()  # another process removes the model before MLflow's message names it
        if removed:
            client.delete_registered_model(name)
        return look(store, name)

    monkeypatch.setattr(SqlAlchemyStore, "get_registered_model", remove_and_look)
    registry.ensure({"qatline.owner": "second"})
    assert registry.state().tags == ({} if removed else {"qatline.owner": "first"})


def test_remove_ignores_a_missing_model(registry: MlflowRegistry) -> None:
    registry.ensure()
    registry.remove()
    registry.remove()
    assert registry.name not in registry.names()


def test_refused_request_is_a_tracking_error(registry: MlflowRegistry) -> None:
    with pytest.raises(TrackingError, match="can't be used"):
        registry.set_tag("qatline.a", "1")  # there is no such model


def test_open_registry_takes_run_and_experiment_of_the_environment(
    store: tuple[str, str], client: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    run = client.create_run(store[1])
    monkeypatch.setenv("QATLINE_PARENT_RUN_ID", run.info.run_id)
    registry = open_registry("opened")
    registry.ensure()
    version_of(registry, files)
    (found,) = registry.versions()
    assert found.run_id == run.info.run_id
    assert registry.new_place().startswith(f"{store[1]}/opened-")


@pytest.mark.parametrize("said", ["", "by the launcher"])
def test_open_registry_takes_the_inputs_that_the_first_pod_left(
    store: tuple[str, str], client: Any, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    monkeypatch.setenv("QATLINE_INPUTS", said)
    pipeline = client.create_run(store[1], tags={"qatline.inputs": "by the pod"})
    step = client.create_run(store[1], tags={"mlflow.parentRunId": pipeline.info.run_id})
    other = client.create_run(store[1])
    found = []
    for run in (other, step, pipeline):
        monkeypatch.setenv("QATLINE_PARENT_RUN_ID", run.info.run_id)
        open_registry("opened")
        found.append(os.environ["QATLINE_INPUTS"])
        monkeypatch.setenv("QATLINE_INPUTS", said)
    assert found == ([said] * 3 if said else ["", "by the pod", "by the pod"])


def test_open_registry_tells_of_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(TrackingError, match="can't be reached"):
        open_registry("away")
