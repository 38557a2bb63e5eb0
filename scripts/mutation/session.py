"""Results of earlier mutants, to resume an interrupted run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from scripts.mutation.mutants import Mutant

CAUGHT = frozenset({"killed", "timeout"})


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one mutant.

    Attributes:
        identity: the mutant's.
        source: SHA-256 of the unchanged module.
        tests: SHA-256 of the test files.
        outcome: ``killed``, ``timeout`` (its tests did not end: caught too) or ``survived``.
        seconds: run time of the tests.
    """

    identity: str
    source: str
    tests: str
    outcome: str
    seconds: float


class Session:
    """A file of results, one JSON object a line."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._found: dict[tuple[str, str], Result] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                self._found[result.identity, result.source] = result

    def find(self, mutant: Mutant, tests: Iterable[str]) -> Result | None:
        """Return the known result, if any.

        A survivor is tried again as soon as its tests have changed.
        """
        result = self._found.get((mutant.identity, self.digest([mutant.module])))
        if result is not None and (result.outcome in CAUGHT or result.tests == self.digest(tests)):
            return result
        return None

    def add(self, mutant: Mutant, tests: Iterable[str], outcome: str, seconds: float) -> Result:
        """Keep a result."""
        result = Result(
            identity=mutant.identity,
            source=self.digest([mutant.module]),
            tests=self.digest(tests),
            outcome=outcome,
            seconds=seconds,
        )
        self._found[result.identity, result.source] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        return result

    def digest(self, paths: Iterable[str]) -> str:
        """Return the SHA-256 of files."""
        content = hashlib.sha256()
        for path in paths:
            content.update((self._root / path).read_bytes())
        return content.hexdigest()
