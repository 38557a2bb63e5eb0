"""Pipes, devices and long files."""

import os
from pathlib import Path

import pytest

from qat_lib.files.regular_files import read_regular


def test_read_regular_refuses_irregular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a pipe"), ("zero", "a device"), (".", "a folder")):
        with pytest.raises(OSError, match=f"it is {kind}, expected a regular file"):
            read_regular(tmp_path / name, 100)


def test_read_regular_refuses_file_beyond_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(101))
    assert read_regular(tmp_path / "x", 101) == bytes(101)
    with pytest.raises(OSError, match="it has 101 bytes, expected at most 100"):
        read_regular(tmp_path / "x", 100)
