"""An ONNX file's metadata entries, also read back from damaged files."""

from __future__ import annotations

import onnx
import pytest

from qat_lib.errors import ExportError
from qat_lib.onnx_view.metadata import read_metadata, read_names


def test_read_metadata_takes_the_entries_of_this_project() -> None:
    proto = onnx.ModelProto()
    for key, value in (("qatline.target", "tensorrt"), ("author", "x"), ("notqatline.y", "z")):
        proto.metadata_props.add(key=key, value=value)
    assert read_metadata(proto) == {"target": "tensorrt"}


def test_read_names_takes_a_missing_entry_as_empty() -> None:
    assert read_names({"layout": '{"x": "NCHW"}'}, "layout") == {"x": "NCHW"}
    assert read_names({}, "layout") == {}


@pytest.mark.parametrize("text", ["", "3", "[]", '{"x": 3}', "[" * 50_000])
def test_read_names_refuses_another_form(text: str) -> None:
    with pytest.raises(ExportError, match=r"qatline\.layout"):
        read_names({"layout": text}, "layout")


def test_read_names_takes_the_last_of_two_entries() -> None:
    assert read_names({"layout": '{"x": "NHWC", "x": "NCHW"}'}, "layout") == {"x": "NCHW"}
