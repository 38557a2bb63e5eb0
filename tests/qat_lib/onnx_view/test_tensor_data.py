"""Tensors whose data do not fit their shape and type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view.tensor_data import check_tensor_data

FILE = Path("model.onnx")


def raw(dims: list[int], size: int, data_type: int = TensorProto.FLOAT) -> TensorProto:
    return TensorProto(name="w", dims=dims, data_type=data_type, raw_data=bytes(size))


@pytest.mark.parametrize(
    "tensor",
    [
        raw([2, 3], 24),
        raw([], 4),
        raw([0, 7], 0),
        raw([3], 3, TensorProto.INT8),
        raw([3], 2, TensorProto.INT4),
        raw([2], 16, TensorProto.COMPLEX64),
        numpy_helper.from_array(np.array(["a", "bc"], object)),
        helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.FLOAT16, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.0, 2.0]),
        helper.make_tensor("w", TensorProto.INT64, [2], [1, 2]),
        helper.make_tensor("w", TensorProto.BOOL, [2], [True, False]),
        helper.make_tensor("w", TensorProto.COMPLEX64, [2], [1j, 2.0]),
        TensorProto(
            name="w", dims=[9], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL
        ),
    ],
)
def test_check_tensor_data_takes_what_fits(tensor: TensorProto) -> None:
    check_tensor_data(FILE, [tensor])


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (raw([2, 3], 20), r"needs 24 bytes for its shape \[2, 3\] and holds 20"),
        (raw([2, 3], 28), "needs 24 bytes"),
        (raw([], 0), "needs 4 bytes"),
        (raw([-2, -3], 24), r"has the shape \[-2, -3\]"),
        (raw([2], 8, 0), "unknown type 0"),
        (raw([2], 8, 99), "unknown type 99"),
        (
            TensorProto(name="w", dims=[1 << 40, 1 << 20], data_type=TensorProto.FLOAT),
            "needs 1,152,921,504,606,846,976 v",
        ),
        (
            TensorProto(name="w", dims=[2], data_type=TensorProto.INT64, float_data=[1, 2]),
            "needs 2 values",
        ),
    ],
)
def test_check_tensor_data_names_what_does_not(tensor: TensorProto, message: str) -> None:
    with pytest.raises(ExportError, match=rf"^Expected an ONNX file.*'w' .*{message}"):
        check_tensor_data(FILE, [raw([1], 4), tensor])
