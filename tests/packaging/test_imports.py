"""Imports go down: no package imports one above, no cycles.

No module comes back to itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABOVE = {"qat_lib": ("components", "pipelines"), "components": ("pipelines",), "pipelines": ()}


def statements(nodes: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that run when a module is imported."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from statements([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from statements(node.body)


def imports_of(source: str, modules: set[str]) -> set[str]:
    """Return the modules that a module imports, with the packages around them."""
    found: set[str] = set()
    for node in statements(ast.parse(source).body):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            found.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return found & modules


def read_graph(root: Path) -> dict[str, set[str]]:
    """Return each module's imports, without the packages it is in."""
    paths = {}
    for package in ABOVE:
        for path in (root / package).rglob("*.py"):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            paths[name.removesuffix(".__init__")] = path
    graph = {}
    for name, path in paths.items():
        around = {name[:end] for end, letter in enumerate(name) if letter == "."} | {name}
        graph[name] = imports_of(path.read_text(), set(paths)) - around
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules that import each other in a cycle, if any."""
    left = {name: set(targets) for name, targets in graph.items()}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(left[path[-1]] & left.keys()))
    return path[path.index(path[-1]) :]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return read_graph(ROOT)


def test_no_module_imports_itself_by_way_of_others(graph: dict[str, set[str]]) -> None:
    assert find_circle(graph) == []


def test_imports_go_down(graph: dict[str, set[str]]) -> None:
    for name, targets in graph.items():
        above = ABOVE[name.partition(".")[0]]
        assert not [target for target in targets if target.partition(".")[0] in above], name


def test_find_circle_names_the_modules() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c", "b"]
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_imports_of_counts_what_runs_at_import() -> None:
    modules = {"qat_lib", "qat_lib.a", "qat_lib.b", "qat_lib.c", "qat_lib.d"}
    source = """
from qat_lib.a import x
from qat_lib import b
if TYPE_CHECKING:
    import qat_lib.c
def f():
    import qat_lib.d
"""
    assert imports_of(source, modules) == {"qat_lib", "qat_lib.a", "qat_lib.b"}
