"""Output paths: what must not be replaced by a result is refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError
from qat_lib.files.output_files import check_output


def test_check_output_accepts_new_and_regular_files(tmp_path: Path) -> None:
    check_output(tmp_path / "new.onnx")
    check_output(tmp_path / "missing" / "new.onnx")
    (tmp_path / "old.onnx").touch()
    check_output(tmp_path / "old.onnx", inputs=[tmp_path / "model.keras"])


def test_check_output_refuses_irregular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "null").symlink_to("/dev/null")
    for name, kind in (
        ("/dev/null", "a device"),
        ("null", "a device"),
        ("fifo", "which is a pipe"),
        ("socket", "a socket"),
        (".", "which is a folder"),
        ("loop", "symbolic links"),
        ("nul\0byte", "null byte"),
    ):
        with pytest.raises(ConfigError, match=kind):
            check_output(tmp_path / name)


def test_check_output_refuses_aliases_of_an_input(tmp_path: Path) -> None:
    model = tmp_path / "model.keras"
    model.touch()
    os.link(model, tmp_path / "other.keras")
    for name in ("model.keras", "other.keras", "../" + tmp_path.name + "/model.keras"):
        with pytest.raises(ConfigError, match="other than the inputs"):
            check_output(tmp_path / name, inputs=[tmp_path / "missing", model])
