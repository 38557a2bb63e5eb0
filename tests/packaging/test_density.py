"""Density figures, counted on sources whose figures are plain."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "density.py"

SOURCE = '''"""A module."""

# A comment.
LIMIT = 3
"""What it is for."""


def pick(values):
    """Return some.

    Of them.
    """
    return [x for x in values if x] if values else set(y for y in values)


class Box:
    def _open(self):
        return {1: 2}
'''


@pytest.fixture(scope="module")
def density() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def counts(density: dict[str, Any], tmp_path: Path) -> Any:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "one.py").write_text(SOURCE)
    (tmp_path / "inside" / "two.py").write_text(
        "class Box:\n    pass\n\n\nWIDE = " + "1 + " * 30 + "1\n"
    )
    (tmp_path / "other.py").write_text(SOURCE)
    return density["count"](tmp_path, ("inside",))


def test_lines_are_those_that_are_not_blank(counts: Any) -> None:
    assert counts.lines == 12 + 3
    assert counts.modules == {"inside/one.py": 18, "inside/two.py": 5}


def test_every_comprehension_and_conditional_is_counted(counts: Any) -> None:
    assert (counts.comprehensions, counts.conditionals) == (2, 1)


def test_functions_are_measured_without_their_docstrings(counts: Any) -> None:
    assert sorted(counts.functions) == [2, 2]


def test_doubles_are_public_names_that_two_modules_define(
    density: dict[str, Any], counts: Any
) -> None:
    assert density["doubles"](counts) == {"Box": ["inside/one.py", "inside/two.py"]}


def test_doubles_allow_name_per_front_end(density: dict[str, Any]) -> None:
    homes = {
        "calibrate": ["qat_lib/keras/calibration/calibrate.py", "qat_lib/torch/calibrate.py"],
        "mark": ["qat_lib/torch/a.py", "qat_lib/torch/b.py"],
        "walk": ["qat_lib/a.py", "qat_lib/torch/a.py", "pipelines/a.py"],
    }
    assert set(density["doubles"](density["Counts"](homes=homes))) == {"mark", "walk"}


def test_figures_are_shares_of_the_lines(density: dict[str, Any], counts: Any) -> None:
    figures = density["figures"](counts)
    assert figures["comprehensions per 1,000 lines"] == pytest.approx(2000 / 15)
    assert figures["lines past 100 columns, %"] == pytest.approx(100 / 15)
    assert figures["longest module, lines"] == 18
    assert figures["public names in two modules"] == 1


def test_main_returns_1_past_a_limit(
    density: dict[str, Any], counts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    main = density["main"]
    main.__globals__["count"] = lambda: counts
    assert main() == 1
    assert "PAST" in capsys.readouterr().out
    main.__globals__["LIMITS"] = dict.fromkeys(density["LIMITS"], 10_000.0)
    assert main() == 0
    assert "PAST" not in capsys.readouterr().out
