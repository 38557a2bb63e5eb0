"""Size checks of the tensors inside an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from onnx import TensorProto, helper

from qat_lib.errors import ExportError

#: Types with several values per byte; the packing differs between types.
_PACKED = ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4", "FLOAT6")
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def check_tensor_data(path: Path, tensors: Iterable[TensorProto]) -> None:
    """Check every tensor with internal data.

    Raises:
        ExportError: a size is negative, or the length of the data contradicts shape and type.
    """
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL:
            continue
        problem = _problem(tensor)
        if problem:
            raise ExportError(
                f"Expected an ONNX file. Received {path}, in which tensor {tensor.name!r} "
                f"{problem}: it is damaged. Export or copy it again."
            )


def _problem(tensor: TensorProto) -> str:
    """Return the mismatch of a tensor's shape, type and data; empty without one."""
    if min(tensor.dims, default=0) < 0:
        return f"has the shape {list(tensor.dims)}"
    kinds = {value: name for name, value in TensorProto.DataType.items()}
    kind = kinds.get(tensor.data_type, "UNDEFINED")
    if kind == "UNDEFINED":
        return f"has the unknown type {tensor.data_type}"
    if kind.startswith(_PACKED):
        return ""
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        expected, unit = count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize, "bytes"
        received = len(tensor.raw_data)
    else:
        # Complex numbers are stored as pairs in the typed field.
        expected, unit = count * (2 if tensor.data_type in _COMPLEX else 1), "values"
        received = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
    if received == expected:
        return ""
    return f"needs {expected:,} {unit} for its shape {list(tensor.dims)} and holds {received:,}"
