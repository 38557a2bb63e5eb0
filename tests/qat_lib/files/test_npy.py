"""``.npy`` files whose header lies."""

import struct
from pathlib import Path

import numpy as np
import pytest

from qat_lib.files.npy import load_npy


def written(path: Path, header: str, version: int = 1, content: bytes = b"") -> Path:
    text = header.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    path.write_bytes(b"\x93NUMPY" + bytes((version, 0)) + length + text + content)
    return path


def test_load_npy_maps_what_numpy_saved(tmp_path: Path) -> None:
    for index, array in enumerate(
        (np.eye(3), np.zeros((0, 3)), np.float32(4), np.asfortranarray(np.eye(3)[:2]))
    ):
        np.save(tmp_path / f"{index}.npy", array)
        np.testing.assert_array_equal(load_npy(tmp_path / f"{index}.npy"), array)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "it is cut short"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3)}", "no negative sizes"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}", "no negative sizes"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "no pickled objects"),
        ("{'descr': '<f4', 'fortran_order': False}", "its header is damaged"),
        ("{'descr': 'what', 'fortran_order': False, 'shape': ()}", "its header is damaged"),
        ("(" * 5_000, "its header is damaged"),
        ("-" * 9_000 + "1", "its header is damaged"),
        ("[" * 90 + "]" * 90, "its header is damaged"),
        (" " * 20_000, "its header has 20,001 bytes, expected at most 10,000"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_load_npy_refuses_a_header(tmp_path: Path, header: str, message: str, version: int) -> None:
    with pytest.raises(ValueError, match=message):
        load_npy(written(tmp_path / "x.npy", header, version))


def test_load_npy_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.savez(tmp_path / "x.npz", a=np.eye(2))
    for content, message in (
        (b"", "it is empty"),
        (b"hello world", "no .npy file"),
        (b"\x93NUMPY", "no .npy file"),
        (b"\x93NUMPY\x09\x00\x01\x00", "no .npy file"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4,294,967,295 bytes"),
        ((tmp_path / "x.npz").read_bytes(), "it is an .npz archive of several arrays"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_npy(path)
