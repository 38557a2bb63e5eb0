"""Density figures, counted on sources whose figures are plain."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "density.py"

ONE = '''"""A module."""

from house.inside.two import (
    Box as Other,
)

# A comment.
LIMIT = 3  # no comment line


def pick(values):
    import json

    return _first(values) or _rest(values) or _rest(None)


def _first(values):
    return values


def _rest(values):
    return values


class Box:
    def _open(self):
        return self._open()

    def __len__(self):
        return 3
'''


@pytest.fixture(scope="module")
def density() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def counts(density: dict[str, Any], tmp_path: Path) -> Any:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "__init__.py").write_text("from house.inside.one import pick\n")
    (tmp_path / "inside" / "one.py").write_text(ONE)
    (tmp_path / "inside" / "two.py").write_text("class Box:\n    pass\n" + "\n" * 70)
    (tmp_path / "other.py").write_text(ONE)
    return density["count"](tmp_path, {"inside": "house.inside"})


def test_count_measures_lines_and_helpers(counts: Any) -> None:
    files = {"inside/__init__.py": 1, "inside/one.py": 30, "inside/two.py": 72}
    assert (counts.modules, counts.lines) == (files, 103)
    assert (counts.imports, counts.comments) == (1 + 3 + 1, 1)
    # _first and _open are named once, _rest twice.
    assert (counts.helpers, counts.once) == (3, 2)


def test_count_draws_the_graph_of_imports(counts: Any) -> None:
    assert counts.graph == {
        "house.inside": {"house.inside.one"},
        "house.inside.one": {"house.inside.two"},
        "house.inside.two": set(),
    }


def test_cycles_are_groups_that_reach_each_other(density: dict[str, Any]) -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e2"}, "e2": {"e"}}
    assert density["cycles"](graph) == [["a", "b", "c"], ["e", "e2"]]
    assert density["cycles"]({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


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
    assert density["figures"](counts) == {
        "import cycles": 0,
        "lines that are imports, %": pytest.approx(500 / 103),
        "lines that are comments, %": pytest.approx(100 / 103),
        "private functions named once, %": pytest.approx(200 / 3),
        "modules under 60 lines": 1,
        "public names in two modules": 1,
    }


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
