"""Runs of an experiment, by any of their names, from MLflow alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.tracking.pipeline_run import RUN_TAG
from qatline.components.tracking.store import ensure_store, open_client
from qatline.pipelines.comparison.find_runs import RunChoice, find_runs

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]
) -> tuple[str, Path]:
    """A store with seven runs of pipelines, one of a step alone, and one of somebody else's."""
    folder = tmp_path_factory.mktemp("mlflow")
    uri = new_store(folder)
    experiment = ensure_store(uri, "nightly", (folder / "artifacts").as_uri())
    client = open_client(uri)
    for index in range(7):
        tags = {RUN_TAG: f"kfp-{index}", "qatline.verdict": "promote"}
        parent = client.create_run(experiment, 1000 + index, tags, f"run-{index}").info.run_id
        client.log_metric(parent, "qat_engine/accuracy", index / 10)
        child = {"mlflow.parentRunId": parent, "qatline.step": "evaluate"}
        client.create_run(experiment, 2000, child, "evaluate")
    client.create_run(experiment, 3000, {"qatline.step": "evaluate"}, "alone")
    client.create_run(experiment, 3000, {}, "somebody")
    return uri, folder


def chosen(store: tuple[str, Path], *names: str, **options: Any) -> RunChoice:
    given: dict[str, Any] = {"uri": store[0], "experiment": "nightly", **options}
    return RunChoice(names=names, output=store[1], **given)


def test_find_runs_returns_the_latest_pipelines(store: tuple[str, Path]) -> None:
    found = find_runs(chosen(store))
    assert [run.name for run in found] == [f"run-{index}" for index in range(2, 7)]
    assert found[-1].row("qat_engine").value == 0.6


def test_find_runs_knows_every_name_of_a_run(store: tuple[str, Path]) -> None:
    by_name, by_kfp = find_runs(chosen(store, "run-1", "kfp-0"))
    assert (by_name.name, by_kfp.name) == ("run-1", "run-0")
    (by_id,) = find_runs(chosen(store, by_name.mlflow_id))
    assert by_id == by_name


def test_store_of_the_environment_needs_no_option(
    store: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store[0])
    found = find_runs(RunChoice(experiment="nightly", output=tmp_path))
    assert len(found) == 5


def test_unknown_run_lists_the_known_ones(store: tuple[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"received 'evaluate'\..*latest runs: run-6, run-5"):
        find_runs(chosen(store, "evaluate"))


@pytest.mark.parametrize("experiment", ["nothing", None])
def test_experiment_without_runs_is_told(store: tuple[str, Path], experiment: str | None) -> None:
    with pytest.raises(ConfigError, match=r"there are none\. Name another one with --experiment"):
        find_runs(chosen(store, experiment=experiment))


def test_missing_store_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected tracked runs in"):
        find_runs(RunChoice(output=tmp_path))
    with pytest.raises(TrackingError, match="can't be reached"):
        find_runs(RunChoice(output=tmp_path, uri="http://127.0.0.1:1"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mlflow.db").touch()
    with pytest.raises(ConfigError, match="Expected tracked runs in"):
        find_runs(RunChoice(output=tmp_path))
    assert (tmp_path / "mlflow.db").stat().st_size == 0
