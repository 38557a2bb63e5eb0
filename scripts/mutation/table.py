"""Which tests answer for which module, and which mutants change nothing: ``modules.toml`` and ``equivalents.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import tomllib

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """A mutant that no test can catch: the lines that it removes and adds in a module, and why nothing changes."""

    module: str
    before: str
    after: str
    reason: str


def load_tests(path: Path = HERE / "modules.toml") -> dict[str, list[str]]:
    """Return the test files by pattern of module paths, in the order in which patterns are tried."""
    table: dict[str, list[str]] = tomllib.loads(path.read_text(encoding="utf-8"))["tests"]
    return table


def find_tests(module: str, table: dict[str, list[str]]) -> list[str]:
    """Return the test files of a module, those that are likeliest to notice first.

    Raises:
        LookupError: no pattern fits.
    """
    for pattern, tests in table.items():
        if fnmatch(module, pattern):
            return tests
    raise LookupError(
        f"{module}: expected a pattern for it in {HERE / 'modules.toml'}; there is none. Add its tests."
    )


def load_equivalents(path: Path = HERE / "equivalents.toml") -> list[Equivalent]:
    """Return the mutants that are known to change nothing."""
    return [
        Equivalent(**each)
        for each in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    ]
