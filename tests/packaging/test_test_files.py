"""Each test file is named after a mirrored module or package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIRRORED = ("components", "pipelines", "qat_lib")

ACROSS_MODULES = {
    "tests/components/report/test_report_parts.py": "the small modules that compute for the report",
    "tests/components/tasks/test_other_tasks.py": "what all tasks have in common",
    "tests/pipelines/test_bad_inputs.py": "every command on every kind of bad input",
    "tests/pipelines/test_examples.py": "the configs in examples/",
    "tests/pipelines/test_missing_packages.py": "every command without the extras",
    "tests/pipelines/test_secrets.py": "secrets at every entry and exit",
    "tests/qat_lib/engines/test_tasks_without_vnni.py": "models of many tasks, built and compared",
    "tests/qat_lib/test_public_names.py": "the names at the top of the package",
    "tests/qat_lib/keras/quantizers/test_gradient_reach.py": "gradients of whole quantized networks",
    "tests/qat_lib/test_reprs.py": "how objects of many modules show themselves",
}


def is_named_after(file: Path, source: Path) -> bool:
    """Whether ``test_<name>.py`` or ``test_<name>_<aspect>.py`` has a module or package ``<name>``."""
    subject = file.stem.removeprefix("test_")
    if not source.is_dir():
        return False
    names = {path.stem for path in source.iterdir() if path.suffix == ".py" or path.is_dir()}
    return any(subject == name or subject.startswith(f"{name}_") for name in names)


def mirrored_tests() -> Iterator[Path]:
    for package in MIRRORED:
        for path in sorted((ROOT / "tests" / package).rglob("test_*.py")):
            yield path.relative_to(ROOT)


@pytest.mark.parametrize("file", list(mirrored_tests()), ids=str)
def test_each_file_is_named_after_what_it_tests(file: Path) -> None:
    source = ROOT.joinpath(*file.parent.parts[1:])
    assert is_named_after(ROOT / file, source) != (str(file) in ACROSS_MODULES)


def test_exceptions_are_files() -> None:
    assert [name for name in ACROSS_MODULES if not (ROOT / name).is_file()] == []


def test_is_named_after_allows_an_aspect(tmp_path: Path) -> None:
    (tmp_path / "graph.py").touch()
    (tmp_path / "rules").mkdir()
    names = ["test_graph", "test_graph_order", "test_rules", "test_graphs", "test_order_graph"]
    found = [is_named_after(tmp_path / f"{name}.py", tmp_path) for name in names]
    assert found == [True, True, True, False, False]
    assert not is_named_after(tmp_path / "test_graph.py", tmp_path / "gone")
