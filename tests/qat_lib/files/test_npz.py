from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qat_lib.files.npz import unpack_arrays


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
    with pytest.raises(ValueError, match="in its array 'a' its type is object"):
        unpack_arrays(tmp_path / "objects.npz")
    (tmp_path / "text.npz").write_bytes(b"hello")
    with pytest.raises(ValueError, match="zip"):
        unpack_arrays(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        unpack_arrays(tmp_path / "gone.npz")
