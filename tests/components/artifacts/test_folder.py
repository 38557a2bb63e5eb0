"""Reading and writing a step's JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from qat_lib.errors import StepError
from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.record import Measured, Record


class Size(Record):
    bytes: int
    name: str = "none"
    seconds: Measured = None


class Sizes(StepFolder):
    STEP: ClassVar[str] = "measure_size"


def test_read_fills_defaults_for_absent_keys(tmp_path: Path) -> None:
    (tmp_path / "size.json").write_text('{"bytes": 3, "of_another_version": true}')
    assert Sizes(tmp_path).read("size.json", Size) == Size(bytes=3, name="none", seconds=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"size\.json can't be read: No such file or directory\. Run measure_size again"),
        ("{", r"size\.json can't be read: Expecting property name"),
        ("[" * 100_000, r"size\.json can't be read: .*recursion"),
        ("[]", r"the file: expected a valid dictionary .*, received \[\]\. Run measure_size"),
        ("{}", r"bytes: expected it, received \{\}"),
        ('{"bytes": "many"}', r"bytes: expected a valid integer.*, received 'many'\. Run measure"),
    ],
)
def test_read_error_names_expectation_and_remedy(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "size.json").write_text(text)
    with pytest.raises(StepError, match=message):
        Sizes(tmp_path).read("size.json", Size)


def test_missing_names_the_files_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert Sizes(tmp_path).missing(["a", "b", "c"]) == ["b", "c"]
    assert Sizes(tmp_path).has("a")


def test_write_ends_with_a_newline_unless_asked_otherwise(tmp_path: Path) -> None:
    folder = Sizes(tmp_path)
    folder.write("size.json", {"bytes": 3})
    assert folder.file("size.json").read_text() == '{\n "bytes": 3\n}\n'
    folder.write("size.json", {"bytes": 3}, indent=None, end="")
    assert folder.file("size.json").read_text() == '{"bytes": 3}'
