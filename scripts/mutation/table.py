"""Tables of each module's tests and of equivalent mutants.

They are ``modules.toml`` and ``equivalents.toml``; an equivalent mutant changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True, kw_only=True)
class Equivalent:
    """An equivalent mutant, which no test can catch.

    It has the lines that it removes and adds in a module, and why nothing changes.
    """

    module: str
    before: str
    after: str
    reason: str


def load_tests(path: Path = HERE / "modules.toml") -> dict[str, list[str]]:
    """Return test files by module path pattern, in matching order."""
    table: dict[str, list[str]] = tomllib.loads(path.read_text(encoding="utf-8"))["tests"]
    return table


def find_tests(module: str, table: dict[str, list[str]]) -> list[str]:
    """Return a module's test files, the likeliest to notice first.

    They are those of its entry in the table, else the files named after it, else those of the
    first pattern that fits.

    Raises:
        LookupError: there are none.
    """
    if module in table:
        return table[module]
    path = Path(module)
    folder = ROOT / "tests" / path.parent
    named = [*folder.glob(f"test_{path.stem}.py"), *sorted(folder.glob(f"test_{path.stem}_*.py"))]
    if named:
        return [str(file.relative_to(ROOT)) for file in named]
    for pattern, tests in table.items():
        if fnmatch(module, pattern):
            return tests
    raise LookupError(
        f"{module}: expected a test file of its name, or a pattern for it in {HERE / 'modules.toml'}; "
        "there is none. Add its tests."
    )


def load_equivalents(path: Path = HERE / "equivalents.toml") -> list[Equivalent]:
    """Return the mutants that are known to change nothing."""
    return [
        Equivalent(**each)
        for each in tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
    ]
