"""Measure source density and enforce the house's limits.

    python scripts/density.py            # print the figures; exit 1 where one is past its limit

All shares are of the lines that are not blank: code, comments and docstrings.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("qat_lib", "components", "pipelines")
WIDE = 100  # columns
TWIN = "qat_lib/torch/"  # the face of another framework, with the same names
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

LIMITS = {
    "comprehensions per 1,000 lines": 25.0,
    "lines past 100 columns, %": 2.0,
    "public names in two modules": 0.0,
}


@dataclass
class Counts:
    """What was counted in all modules."""

    lines: int = 0
    wide: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    functions: list[int] = field(default_factory=list)
    modules: dict[str, int] = field(default_factory=dict)
    homes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def count(root: Path = ROOT, packages: tuple[str, ...] = PACKAGES) -> Counts:
    """Count what is in the modules of the packages below a folder."""
    counts = Counts()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            _count_module(path.read_text(encoding="utf-8"), str(path.relative_to(root)), counts)
    return counts


def figures(counts: Counts) -> dict[str, float]:
    """Return the figures by name."""
    lengths = sorted(counts.functions)
    return {
        "comprehensions per 1,000 lines": 1000 * counts.comprehensions / counts.lines,
        "conditional expressions per 1,000 lines": 1000 * counts.conditionals / counts.lines,
        "lines past 100 columns, %": 100 * counts.wide / counts.lines,
        "longest module, lines": float(max(counts.modules.values())),
        "function length, 90th percentile": float(lengths[int(0.9 * len(lengths))]),
        "public names in two modules": float(len(doubles(counts))),
    }


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


def _count_module(text: str, name: str, counts: Counts) -> None:
    tree = ast.parse(text)
    lines = text.splitlines()
    counts.modules[name] = len(lines)
    counts.lines += sum(bool(line.strip()) for line in lines)
    counts.wide += sum(len(line) > WIDE for line in lines)
    for node in ast.walk(tree):
        counts.comprehensions += isinstance(node, COMPREHENSIONS)
        counts.conditionals += isinstance(node, ast.IfExp)
        if isinstance(node, FUNCTIONS):
            counts.functions.append(_body_length(node))
    for node in tree.body:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            counts.homes[node.name].append(name)


def _body_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from ``def`` on, without its docstring."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


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
    for public, homes in doubles(counts).items():
        sys.stdout.write(f"  {public}: {', '.join(homes)}\n")
    return int(past)


if __name__ == "__main__":
    sys.exit(main())
