"""Damaged ``.npy`` and ``.npz`` files."""

import struct
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from qat_lib.files.npy import load_npy, take_rows, unpack_arrays


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


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("width", [3, 5000])  # rows within a page, and over several
def test_take_rows_returns_the_rows_of_a_mapped_file(
    tmp_path: Path, width: int, order: Literal["C", "F"]
) -> None:
    array = np.arange(7 * width, dtype=np.int32).reshape(7, width, order=order)
    np.save(tmp_path / "rows.npy", array)
    mapped = load_npy(tmp_path / "rows.npy")
    for indices in (np.array([6, 0, 3, 3]), np.array([], np.int64), slice(2, 5)):
        np.testing.assert_array_equal(take_rows(mapped, indices), array[indices])
        np.testing.assert_array_equal(take_rows(array, indices), array[indices])
    np.testing.assert_array_equal(take_rows(mapped[2:], np.array([4])), array[6:])


def test_take_rows_reads_a_map_that_begins_within_its_file(tmp_path: Path) -> None:
    values = np.arange(30_000, dtype=np.int32)
    values.tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", np.int32, "r", offset=40_000, shape=(4, 5000))
    taken = take_rows(mapped, np.array([3, 0]))
    np.testing.assert_array_equal(taken, values[10_000:].reshape(4, 5000)[[3, 0]])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", "greater than"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", "overflow"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3)}", "negative dimensions"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "Python objects"),
        ("{'descr': '<f4', 'fortran_order': False}", "correct keys"),
        ("{'descr': 'what', 'fortran_order': False, 'shape': ()}", "not a valid dtype"),
        ("(" * 5_000, "a whole .npy file of plain numbers"),
        ("-" * 9_000 + "1", "a whole .npy file of plain numbers"),
        ("[" * 90 + "]" * 90, "not a dictionary"),
        (" " * 20_000, "is large and may not be safe"),
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
        (b"", "got 0"),
        (b"hello world", "magic string is not correct"),
        (b"\x93NUMPY", "got 6"),
        (b"\x93NUMPY\x09\x00\x01\x00", "format version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "expected 4294967295 bytes"),
        ((tmp_path / "x.npz").read_bytes(), "it is an .npz archive of several arrays"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_npy(path)


def test_unpack_arrays_returns_every_array(tmp_path: Path) -> None:
    written = {"a.weight": np.float32([[1, 2]]), "count": np.int64(3)}
    np.savez(tmp_path / "w.npz", **written)
    read = unpack_arrays(tmp_path / "w.npz")
    assert list(read) == list(written)
    for name, array in written.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


def test_unpack_arrays_refuses_objects_and_other_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", a=np.array([{}], object))
    with pytest.raises(ValueError, match=r"its array 'a' can't be read .*allow_pickle=False"):
        unpack_arrays(tmp_path / "objects.npz")
    with zipfile.ZipFile(tmp_path / "members.npz", "w") as archive:
        archive.writestr("a.npy", b"hello")
    with pytest.raises(ValueError, match="its array 'a' can't be read"):
        unpack_arrays(tmp_path / "members.npz")
    (tmp_path / "text.npz").write_bytes(b"hello")
    with pytest.raises(ValueError, match="zip"):
        unpack_arrays(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        unpack_arrays(tmp_path / "gone.npz")


def test_unpack_arrays_refuses_a_cut_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.arange(1000))
    data = bytearray((tmp_path / "w.npz").read_bytes())
    data[500] ^= 1
    (tmp_path / "w.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"its array 'a' can't be read .*CRC"):
        unpack_arrays(tmp_path / "w.npz")
