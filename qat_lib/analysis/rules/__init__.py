"""The rules, one file for each group of codes.

A file of ``ENGINE_RULES`` declares its codes as ``qat_lib.analysis.findings.Rule`` objects and
defines a function ``check_<file>`` that yields the findings in a predicted engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from qat_lib.analysis.engine import PredictedEngine
    from qat_lib.analysis.findings import Finding

Check: TypeAlias = "Callable[[PredictedEngine], Iterable[Finding]]"

#: Checks of a predicted engine, in the listed order of a node's findings.
ENGINE_RULES = (
    "scales",
    "weighted",
    "epilogue",
    "residual",
    "mixed",
    "attention",
    "borders",
)
#: Checks of the graph itself, by ``.parser`` and ``qat_lib.export.verify``.
GRAPH_RULES = ("pair", "pair_axis", "pair_types", "parser", "record")


def engine_checks() -> Iterator[Check]:
    """Yield the check of each file of ``ENGINE_RULES``."""
    for name in ENGINE_RULES:
        yield getattr(_import(name), f"check_{name}")


def rule_modules() -> list[ModuleType]:
    """Return all modules with declared codes."""
    return [_import(name) for name in (*GRAPH_RULES, *ENGINE_RULES)]


def _import(name: str) -> ModuleType:
    # Not at the top: most rules import the flow of a graph, which itself imports the parser rules
    # for the legality of Q and DQ nodes.
    return import_module(f"{__name__}.{name}")
