"""A training's state in a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from qat_lib.files.state_file import read_state, write_state


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    arrays: list[Any] = [
        np.float32([[1.5, -0.0], [np.nan, 1e-45]]),
        np.array([True, False]),
        np.int64(3).reshape(()),
        np.zeros((0, 2), np.int16),
        np.array([1.5, 3], ml_dtypes.bfloat16),
        np.arange(6).reshape(2, 3).T,
    ]
    state = {"a": [1, 0.1, None, "text", True], "deep": {"arrays": arrays}, "rows": ({"x": 0.3},)}
    write_state(tmp_path / "file", state)
    found = read_state(tmp_path / "file")
    assert found["a"] == state["a"]
    assert found["rows"] == [{"x": 0.3}]
    for value, expected in zip(found["deep"]["arrays"], arrays, strict=True):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        assert value.tobytes() == expected.tobytes()
        assert value.flags.writeable


def test_keys_keep_their_kind() -> None:
    stream = io.BytesIO()
    write_state(stream, {"state": {0: {"step": np.float32(2)}}})
    assert list(read_state(stream)["state"]) == [0]


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="received <class 'object'>"):
        write_state(tmp_path / "file", [object()])


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(ValueError, match="damaged"):
        read_state(tmp_path / "other.npz")


def test_read_state_refuses_a_member_with_a_flag_of_encryption(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_state(path, {"a": 1})
    content = bytearray(path.read_bytes())
    for start in (b"PK\x03\x04", b"PK\x01\x02"):
        content[content.index(start) + (6 if start[2] == 3 else 8)] |= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it is damaged"):
        read_state(path)
