"""Runs side by side, from a real MLflow store."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.run.compare import compare_runs
from qat_lib.errors import ConfigError

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

SHARED = {"model.name": "resnet20", "output": "runs"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tracked runs with one different setting and different results."""
    from mlflow import MlflowClient

    output = tmp_path_factory.mktemp("runs")
    uri = f"sqlite:///{output}/mlflow.db"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("qatline", artifact_location=str(output / "mlruns"))
    for name, epochs, accuracy in (("first", "1", 0.5), ("second", "2", 0.75)):
        run = client.create_run(experiment).info.run_id
        for key, value in {**SHARED, "output": name, "qat.epochs": epochs}.items():
            client.log_param(run, key, value)
        client.log_metric(run, "fp32.accuracy", accuracy)
        client.set_tag(run, "qatline.verdict", "promote")
        folder = output / name
        folder.mkdir()
        (folder / "run.json").write_text("{}")
        (folder / "tracking.json").write_text(json.dumps({"uri": uri, "run_id": run}))
    return output


def shown(output: Path, *names: str) -> dict[str, list[str]]:
    """Return the table's cells by row title."""
    text = io.StringIO()
    compare_runs(names, output=output, console=Console(file=text, width=120))
    rows = (
        line.rsplit(maxsplit=max(len(names), 1))
        for line in text.getvalue().splitlines()
        if line.strip()
    )
    return {cells[0].strip(): cells[1:] for cells in rows}


def test_compare_shows_only_different_settings(output: Path) -> None:
    rows = shown(output, "first", "second")
    assert rows["qat.epochs"] == ["1", "2"]
    assert not set(SHARED) & set(rows)


def test_compare_shows_what_came_of_each_run(output: Path) -> None:
    rows = shown(output, "second", "first")
    assert rows["verdict"] == ["promote", "promote"]
    assert rows["FP32 Keras: accuracy"] == ["75.00%", "50.00%"]


def test_compare_defaults_to_latest_runs(output: Path) -> None:
    text = io.StringIO()
    compare_runs([], output=output, console=Console(file=text, width=120))
    assert text.getvalue().index("first") < text.getvalue().index("second")


def test_compare_refuses_a_run_that_was_not_tracked(output: Path, tmp_path: Path) -> None:
    folder = tmp_path / "untracked"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="untracked has no record in MLflow"):
        compare_runs([str(folder)], output=output)
