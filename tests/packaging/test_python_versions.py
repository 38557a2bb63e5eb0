"""The oldest admitted Python has every standard library name we import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SINCE_3_11 = {
    "asyncio.TaskGroup", "asyncio.timeout", "contextlib.chdir", "datetime.UTC", "enum.StrEnum",
    "enum.verify", "hashlib.file_digest", "operator.call", "tomllib", "typing.LiteralString",
    "typing.Never", "typing.NotRequired", "typing.Required", "typing.Self", "typing.assert_never",
    "typing.assert_type", "typing.reveal_type", "wsgiref.types",
}  # fmt: skip
"""What is new in Python 3.11, by its release notes, as far as a library like this one may want it."""


def names_in(source: str) -> Iterator[str]:
    """Yield what a module imports and which attributes of names it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def modules() -> list[Path]:
    packages = ("qat_lib", "components", "pipelines")
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_needs_a_later_python(path: Path) -> None:
    assert not SINCE_3_11.intersection(names_in(path.read_text()))


def test_names_in_sees_imports_and_attributes() -> None:
    source = "import hashlib, tomllib\nfrom enum import StrEnum\nhashlib.file_digest(x, 'md5')"
    assert SINCE_3_11.intersection(names_in(source)) == {
        "enum.StrEnum",
        "hashlib.file_digest",
        "tomllib",
    }
