"""Output directory of a step, with its JSON files as records."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from qat_lib.errors import StepError

_T = TypeVar("_T")


@dataclass(frozen=True)
class StepFolder:
    """Base of the artifacts.

    Args:
        path: the output directory of the step ``STEP``.
    """

    STEP: ClassVar[str]

    path: Path

    def file(self, name: str) -> Path:
        """Return the path of a file, existing or not."""
        return self.path / name

    def has(self, name: str) -> bool:
        """Return whether the file exists."""
        return self.file(name).is_file()

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the entries of ``names`` without a file."""
        return [name for name in names if not self.has(name)]

    def read(self, name: str, kind: type[_T]) -> _T:
        """Read a JSON file as ``kind``.

        Raises:
            StepError: it is missing, not JSON, or has another content.
        """
        path = self.file(name)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self.damaged(name, str(getattr(error, "strerror", None) or error)) from error
        try:
            value: _T = _schema(cast("Hashable", kind)).validate_python(content)
        except ValidationError as error:
            raise self.damaged(name, _first(error)) from error
        return value

    def damaged(self, name: str, problem: str) -> StepError:
        """Return the error for an unusable file."""
        return StepError(f"{self.file(name)} can't be read: {problem}. Run {self.STEP} again.")

    def write(self, name: str, content: Any, *, indent: int | None = 1, end: str = "\n") -> None:
        """Write plain JSON types."""
        text = json.dumps(content, indent=indent) + end
        self.file(name).write_text(text, encoding="utf-8")


@cache
def _schema(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _first(error: ValidationError) -> str:
    """Return the first invalid value: path, expected, received."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(map(str, problem["loc"]))
    message = problem["msg"].removeprefix("Input should be ")
    expected = "it" if problem["type"] == "missing" else message
    return f"{place or 'the file'}: expected {expected}, received {problem['input']!r:.80}"
