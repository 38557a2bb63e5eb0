"""Mutation testing: its sample, test table, score and, on demand, result."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.mutation.__main__ import SCOPE
from scripts.mutation.mutants import Mutant, draw, find_mutants
from scripts.mutation.report import Verdict, render, score, wilson_interval
from scripts.mutation.session import Session
from scripts.mutation.table import find_tests, load_equivalents, load_tests
from scripts.mutation.worker import outcome

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    str(path.relative_to(ROOT)) for folder in SCOPE for path in (ROOT / folder).rglob("*.py")
)
SOURCE = '''
from dataclasses import dataclass

@dataclass(frozen=True)
class Box:
    side: int | None

def volume(side: int | float, *, count: int = 1) -> "int | None":
    """Return it."""
    return None if side < 0 else count * side
'''


def write(root: Path, source: str) -> list[Mutant]:
    (root / "box.py").write_text(source)
    return find_mutants(root, ["box.py"])


def test_find_mutants_changes_behaviour_only(tmp_path: Path) -> None:
    """One mutant per place; none in annotations, dataclass options or ``*`` markers."""
    changes = {mutant.changed_lines(SOURCE) for mutant in write(tmp_path, SOURCE)}
    removed = [before for before, _ in changes]
    assert sum("@dataclass" in line for line in removed) == 1  # the decorator itself may be lost
    assert sum("count: int = 1" in line for line in removed) == 1
    assert not any(
        "int | None" in before and "int | None" not in after for before, after in changes
    )
    assert sum(line.startswith("return None if side < 0") for line in removed) == 4
    for mutant in write(tmp_path, SOURCE):
        compile(mutant.apply(SOURCE), "box.py", "exec")


def test_find_mutants_leaves_dotted_exceptions_out(tmp_path: Path) -> None:
    """Cosmic Ray can't put another one in their place."""
    source = "import json\ntry:\n    pass\nexcept (OSError, json.JSONDecodeError):\n    pass\n"
    (changed,) = {mutant.changed_lines(source)[1] for mutant in write(tmp_path, source)}
    assert changed == "except (CosmicRayTestingException, json.JSONDecodeError):"


def test_draw_keeps_its_order_while_other_code_changes(tmp_path: Path) -> None:
    before = draw(write(tmp_path, SOURCE), seed=3)
    more = draw(write(tmp_path, f"LIMIT = 5\n{SOURCE}"), seed=3)
    kept = [
        mutant.identity for mutant in more if mutant.identity in {each.identity for each in before}
    ]
    assert kept == [mutant.identity for mutant in before]
    assert len(more) == len(before) + 1
    assert draw(before, seed=4) != before


def test_each_module_has_tests() -> None:
    for module in MODULES:
        for test in find_tests(module, load_tests()):
            assert (ROOT / test).is_file(), (
                f"{test}, which modules.toml names for {module}, is gone"
            )


def test_find_tests_names_a_module_without_tests() -> None:
    with pytest.raises(LookupError, match=r"qat_lib/new\.py: expected a test file"):
        find_tests("qat_lib/new.py", load_tests())


def test_find_tests_prefers_entries_then_names_then_patterns() -> None:
    module = "qat_lib/onnx_view/bounds.py"
    assert find_tests(module, {module: ["a"], "qat_lib/*": ["b"]}) == ["a"]
    assert find_tests(module, {"qat_lib/*": ["b"]}) == ["tests/qat_lib/onnx_view/test_bounds.py"]
    assert find_tests("qat_lib/none.py", {"qat_lib/*": ["b"]}) == ["b"]


def test_each_equivalent_is_still_there() -> None:
    for each in load_equivalents():
        lines = [line.strip() for line in (ROOT / each.module).read_text().splitlines()]
        for before in each.before.splitlines():
            assert before in lines, f"{each.module} has no line {before!r} now: remove its entry"
        assert each.after != each.before
        assert len(each.reason) > 20


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(9, 10, 0.5958, 0.9821), (0, 10, 0.0, 0.2775), (0, 0, 0.0, 1.0)],
)
def test_wilson_interval_agrees_with_published_values(
    successes: int, count: int, low: float, high: float
) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_score_counts_timeouts_but_not_equivalents() -> None:
    outcomes = ["killed", "timeout", "survived", "equivalent", "killed"]
    verdicts = [Verdict(module="a/b.py", outcome=each, diff=f"<{each}>") for each in outcomes]
    assert score(verdicts) == 0.75
    text = render(verdicts)
    assert "75.0% (30.1% to 95.4%)" in text
    assert "<survived>" in text
    assert "<killed>" not in text


def test_session_retries_survivor_after_test_change(tmp_path: Path) -> None:
    killed, survived = write(tmp_path, SOURCE)[:2]
    (tmp_path / "test_box.py").write_text("1")
    session = Session(tmp_path / "results.jsonl", tmp_path)
    session.add(killed, ["test_box.py"], "killed", 1.0)
    session.add(survived, ["test_box.py"], "survived", 1.0)
    resumed = Session(tmp_path / "results.jsonl", tmp_path)
    assert resumed.find(survived, ["test_box.py"]) is not None
    assert resumed.find(replace(killed, identity="another"), ["test_box.py"]) is None
    (tmp_path / "test_box.py").write_text("2")
    assert resumed.find(killed, ["test_box.py"]) is not None
    assert resumed.find(survived, ["test_box.py"]) is None
    (tmp_path / "box.py").write_text(f"{SOURCE}\n")
    assert resumed.find(killed, ["test_box.py"]) is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, "survived"),
        (1, "killed"),
        (2, "killed"),
        (-9, "killed"),
        (None, "timeout"),
        (5, "error"),
    ],
)
def test_worker_reads_the_exit_code_of_pytest(code: int | None, expected: str) -> None:
    assert outcome(code) == expected


@pytest.mark.mutation
@pytest.mark.timeout(7200)
def test_tests_catch_nine_mutants_of_ten() -> None:
    command = [
        sys.executable,
        "-m",
        "scripts.mutation",
        "--sample",
        "60",
        "--minutes",
        "90",
        "--least",
        "0.9",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
