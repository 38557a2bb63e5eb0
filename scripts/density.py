"""Measure how the sources are cut into modules and functions.

    python scripts/density.py            # print the figures; exit 1 where one is past its limit

Shares of lines are of all lines, blank ones included.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "qat_lib": "qat_lib",
    "components": "qatline.components",
    "pipelines": "qatline.pipelines",
}
"""Import name of each folder."""

TWIN = "qat_lib/torch/"  # the front end of another framework, with the same names
SHORT = 60  # lines
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

LIMITS = {
    "import cycles": 0.0,
    # To be lowered with the figure; 6 is the goal.
    "lines that are imports, %": 9.2,
    "public names in two modules": 0.0,
}


@dataclass
class Counts:
    """Counts over all modules.

    Attributes:
        lines: all lines.
        imports: lines of import statements.
        comments: lines that hold a comment alone.
        helpers: private functions and methods.
        once: those that their module names exactly once.
        modules: length of each module by its file.
        homes: files that define each public class or function.
        graph: modules that each module imports.
    """

    lines: int = 0
    imports: int = 0
    comments: int = 0
    helpers: int = 0
    once: int = 0
    modules: dict[str, int] = field(default_factory=dict)
    homes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    graph: dict[str, set[str]] = field(default_factory=dict)


def count(root: Path = ROOT, packages: Mapping[str, str] = PACKAGES) -> Counts:
    """Count over the modules in the folders of the packages."""
    counts = Counts()
    paths = {}
    for folder, package in packages.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            paths[".".join((package, *parts)).removesuffix(".__init__")] = path
    for module, path in paths.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        _count_module(text, tree, path.relative_to(root).as_posix(), counts)
        # A package is imported before its modules, so that it may import them.
        counts.graph[module] = {
            target for target in _imported(tree, paths) if not f"{module}.".startswith(f"{target}.")
        }
    return counts


def figures(counts: Counts) -> dict[str, float]:
    """Return the figures by name."""
    short = [name for name in short_modules(counts) if not name.endswith("__init__.py")]
    return {
        "import cycles": float(len(cycles(counts.graph))),
        "lines that are imports, %": 100 * counts.imports / counts.lines,
        "lines that are comments, %": 100 * counts.comments / counts.lines,
        "private functions named once, %": 100 * counts.once / max(counts.helpers, 1),
        f"modules under {SHORT} lines": float(len(short)),
        "public names in two modules": float(len(doubles(counts))),
    }


def short_modules(counts: Counts) -> list[str]:
    """Return the modules under ``SHORT`` lines."""
    return [name for name, lines in counts.modules.items() if lines < SHORT]


def doubles(counts: Counts) -> dict[str, list[str]]:
    """Return public classes and functions defined in more than one module.

    A name of the PyTorch front end may be the Keras side's too: each face has it once.
    """
    found = {}
    for name, homes in counts.homes.items():
        inside = sum(home.startswith(TWIN) for home in homes)
        if inside > 1 or len(homes) - inside > 1:
            found[name] = homes
    return found


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def _imported(tree: ast.Module, modules: Container[str]) -> set[str]:
    """Return the modules that a module imports, in functions and for types too."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    found = set()
    for name in names:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


def _count_module(text: str, tree: ast.Module, name: str, counts: Counts) -> None:
    lines = [line.strip() for line in text.splitlines()]
    counts.modules[name] = len(lines)
    counts.lines += len(lines)
    counts.comments += sum(line.startswith("#") for line in lines)
    helpers, named = [], Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            counts.imports += (node.end_lineno or node.lineno) - node.lineno + 1
        elif isinstance(node, FUNCTIONS):
            if node.name.startswith("_") and not node.name.startswith("__"):
                helpers.append(node.name)
        elif isinstance(node, ast.Name):
            named[node.id] += 1
        elif isinstance(node, ast.Attribute):
            named[node.attr] += 1
    counts.helpers += len(helpers)
    counts.once += sum(named[helper] == 1 for helper in helpers)
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            counts.homes[node.name].append(name)


def main() -> int:
    """Print the figures; return 1 if one is past its limit."""
    counts = count()
    past = False
    for name, value in figures(counts).items():
        limit = LIMITS.get(name)
        is_past = limit is not None and value > limit
        past = past or is_past
        sys.stdout.write(
            f"{name:<42}{value:8.1f}" + (f"  limit {limit:g}" if limit is not None else "")
        )
        sys.stdout.write("  PAST\n" if is_past else "\n")
    for group in cycles(counts.graph):
        sys.stdout.write(f"  cycle: {', '.join(group)}\n")
    for public, homes in doubles(counts).items():
        sys.stdout.write(f"  {public}: {', '.join(homes)}\n")
    return int(past)


if __name__ == "__main__":
    sys.exit(main())
