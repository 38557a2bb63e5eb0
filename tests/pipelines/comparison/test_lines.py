"""Runs side by side, from a real MLflow store."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from qat_lib.errors import ConfigError
from qatline.components.artifacts import ResultRow
from qatline.components.artifacts.variants import ROWS
from qatline.pipelines.comparison.lines import compare_runs, comparison_view
from qatline.pipelines.comparison.tracked_runs import TrackedRun

pytestmark = pytest.mark.filterwarnings(
    "ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"
)

SHARED = {"model.name": "resnet20", "output": "runs"}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[Path], str]) -> Path:
    """Two tracked runs with one different setting and different results."""
    from mlflow import MlflowClient

    output = tmp_path_factory.mktemp("runs")
    uri = new_store(output)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("qatline", artifact_location=str(output / "mlruns"))
    for name, epochs, accuracy in (("first", "1", 0.5), ("second", "2", 0.75)):
        run = client.create_run(experiment).info.run_id
        for key, value in {**SHARED, "output": name, "qat.epochs": epochs}.items():
            client.log_param(run, key, value)
        client.log_metric(run, "fp32/accuracy", accuracy)
        client.set_tag(run, "qatline.verdict", "promote")
        folder = output / name
        folder.mkdir()
        (folder / "run.json").write_text("{}")
        (folder / "tracking.json").write_text(json.dumps({"uri": uri, "run_id": run}))
    return output


def printed(output: Path, *names: str) -> str:
    """Return the comparison as lines without blanks at their ends."""
    text = io.StringIO()
    compare_runs(names, output=output, console=Console(file=text, width=80))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def shown(output: Path, *names: str) -> dict[str, list[str]]:
    """Return the table's cells by row title."""
    lines = filter(None, printed(output, *names).splitlines())
    rows = (line.rsplit(maxsplit=max(len(names), 1)) for line in lines)
    return {cells[0].strip(): cells[1:] for cells in rows}


def test_compare_shows_only_different_settings(output: Path) -> None:
    text = printed(output, "first", "second")
    assert "1  first\n2  second\n" in text
    assert "Settings that differ\nqat.epochs\n  1: 1\n  2: 2\n" in text
    assert not any(key in text for key in SHARED)


def test_compare_reads_well_at_80_columns() -> None:
    runs = [
        TrackedRun(
            name=f"20260101-00000{index}-abcd",
            mlflow_id="x",
            verdict="nothing new",
            params={
                "quantization.bias_correction": str(index % 2),
                "model.name": "package.of.models:build_network" if index else "resnet_digits",
            },
            rows={name: ResultRow(accuracy=1.0, latency_ms_p50=12.5, bytes=10**7) for name in ROWS},
        )
        for index in range(7)
    ]
    text = io.StringIO()
    Console(file=text, width=80).print(comparison_view(runs))
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert all(len(line) <= 80 for line in lines)
    assert "model.name" in lines
    assert "  2, 3, 4, 5, 6, 7: package.of.models:build_network" in lines
    figures = [line for line in lines if "QAT INT8 engine: accuracy" in line]
    assert [line.count("100.00%") for line in figures] == [5, 2]


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
