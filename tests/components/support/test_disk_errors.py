"""Errors of the file system as the user sees them."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from qat_lib.errors import StorageError
from qatline.components.support.disk_errors import as_storage_error, is_disk_full


def test_as_storage_error_reports_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def disk_usage(place: Path) -> SimpleNamespace:
        asked.append(place)
        return SimpleNamespace(free=3 << 20, total=5000 << 20)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    told = as_storage_error(OSError(errno.ENOSPC, "full"), tmp_path / "a" / "b")
    assert str(told).startswith(
        f"the disk is full: {tmp_path}/a/b can't be written (3 MiB free of 5000). Free some space"
    )
    assert "qatline resume" in str(told)
    as_storage_error(OSError(errno.ENOSPC, "full"), tmp_path)
    assert asked == [tmp_path, tmp_path]


def test_as_storage_error_without_disk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_usage(place: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    told = str(as_storage_error(OSError(errno.ENOSPC, "full"), tmp_path))
    assert told.startswith(f"the disk is full: {tmp_path} can't be written. Free")


def test_as_storage_error_keeps_other_errors_text() -> None:
    told = str(as_storage_error(PermissionError(errno.EACCES, "Permission denied"), Path("/a")))
    assert (
        told
        == "/a can't be written: [Errno 13] Permission denied. Correct that, or choose another place."
    )
    own = StorageError("No space left on device")
    assert as_storage_error(own, Path("/a")) is own


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_is_disk_full_goes_by_the_number(code: int) -> None:
    assert is_disk_full(OSError(code, "in another language"))


def test_is_disk_full_reads_errno_of_oserror_only() -> None:
    other = RuntimeError("x")
    other.errno = errno.ENOSPC  # type: ignore[attr-defined]
    assert not is_disk_full(other)
    assert not is_disk_full(OSError(errno.EACCES, os.strerror(errno.EACCES)))


@pytest.mark.parametrize(
    "text",
    [
        "No space left on device",
        "File too large",
        "database or disk is full",
        "Disk quota exceeded",
    ],
)
def test_is_disk_full_reads_library_messages(text: str) -> None:
    assert is_disk_full(RuntimeError(f"writing failed ({text})"))


@pytest.mark.parametrize("attribute", ["__cause__", "__context__"])
def test_is_disk_full_checks_the_cause(attribute: str) -> None:
    full, middle, outer = OSError(errno.ENOSPC, "x"), RuntimeError("b"), RuntimeError("a")
    setattr(middle, attribute, full)
    setattr(outer, attribute, middle)
    assert is_disk_full(outer)


def test_is_disk_full_prefers_cause_to_context() -> None:
    outer = RuntimeError("a")
    outer.__context__ = RuntimeError("b")
    outer.__cause__ = OSError(errno.ENOSPC, "x")
    assert is_disk_full(outer)


def test_is_disk_full_ends_on_circular_causes() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__context__, second.__context__ = second, first
    assert not is_disk_full(first)
