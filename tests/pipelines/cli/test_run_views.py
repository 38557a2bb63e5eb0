"""What ``qatline compare`` shows: a table, a page, JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from compared_runs import three_runs
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app
from qatline.pipelines.comparison import find_runs

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """Give three runs to whoever asks; remember what was asked for."""
    found: list[tuple[Any, bool]] = []

    def find(choice: Any, *, details: bool) -> Any:
        found.append((choice, details))
        return three_runs()

    monkeypatch.setattr(find_runs, "find_runs", find)
    return found


def test_compare_prints_a_table_of_80_columns(asked: list[tuple[Any, bool]]) -> None:
    done = runner.invoke(app, ["compare", "--experiment", "nightly"])
    assert done.exit_code == 0, done.output
    assert "QAT INT8 engine: accuracy" in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    ((choice, details),) = asked
    assert (choice.experiment, choice.names, details) == ("nightly", [], False)


def test_compare_writes_a_page(asked: list[tuple[Any, bool]], tmp_path: Path) -> None:
    page = tmp_path / "deep" / "compare.html"
    page.parent.mkdir()
    done = runner.invoke(app, ["compare", "low", "--html", str(page), "--runs-dir", "elsewhere"])
    assert done.exit_code == 0, done.output
    assert "3 runs compared" in page.read_text()
    ((choice, details),) = asked
    assert (choice.names, choice.output, details) == (["low"], Path("elsewhere"), True)


def test_compare_prints_json_alone(asked: list[tuple[Any, bool]]) -> None:
    done = runner.invoke(app, ["compare", "--json"])
    names = [run["name"] for run in json.loads(done.stdout)["runs"]]
    assert names == ["low", "middle", "<high>"]


def test_compare_refuses_credentials_before_it_looks(asked: list[tuple[Any, bool]]) -> None:
    done = runner.invoke(app, ["compare", "--tracking-uri", "https://me:planted@host"])
    assert done.exit_code == 2
    assert "expected an address without credentials" in done.stderr
    assert "planted" not in done.output
    assert asked == []


def test_compare_refuses_a_page_that_cannot_be_written(
    asked: list[tuple[Any, bool]], tmp_path: Path
) -> None:
    done = runner.invoke(app, ["compare", "--html", str(tmp_path)])
    assert done.exit_code == 2
    assert asked == []
