"""The size of an ONNX file is looked at before its content."""

from pathlib import Path

import pytest

from qat_lib.errors import ExportError
from qat_lib.onnx_view.loading import load_onnx


@pytest.mark.matrix
def test_load_onnx_refuses_what_protobuf_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # sparse: no byte is on the disk
    with pytest.raises(ExportError, match=r"2,147,483,648 bytes, expected at most 2,147,483,647"):
        load_onnx(path)
    with path.open("wb") as file:
        file.truncate(2**31 - 1)
    with pytest.raises(ExportError, match=r"^(?!.*less than 2 GiB)"):
        load_onnx(path)
