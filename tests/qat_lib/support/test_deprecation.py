from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from qat_lib.support.deprecation import RenamedField, renamed_fields, with_new_names

RENAMED = {"size_mm": RenamedField("size", lambda mm: mm / 10, lambda cm: cm * 10)}


@renamed_fields(RENAMED)
@dataclass(frozen=True, kw_only=True)
class Box:
    size: float = 1.0
    color: str = "red"


def test_renamed_fields_take_new_names_in_silence() -> None:
    assert Box(size=3.0, color="blue").size == 3.0
    assert Box() == Box(size=1.0)


def test_renamed_fields_take_old_name_with_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"Box.size_mm is now size; the old name goes"):
        box = Box(size_mm=25)  # type: ignore[call-arg]
    assert box == Box(size=2.5)
    with pytest.warns(DeprecationWarning, match=r"Box.size_mm is now size"):
        assert replace(Box(color="blue"), size_mm=40) == Box(size=4, color="blue")  # type: ignore[call-arg]


def test_renamed_fields_show_old_name_with_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"Box.size_mm is now size") as seen:
        assert Box(size=2.0).size_mm == 20.0  # type: ignore[attr-defined]
    assert seen[0].filename == __file__


def test_renamed_fields_refuse_unknown_names() -> None:
    with pytest.raises(TypeError, match="width"):
        Box(width=1)  # type: ignore[call-arg]


def test_with_new_names_reads_files_of_before() -> None:
    assert with_new_names({"size_mm": 25, "a": 1}, RENAMED) == {"size": 2.5, "a": 1}
    assert with_new_names({"size": 2, "size_mm": 3}, RENAMED) == {"size": 2, "size_mm": 3}
