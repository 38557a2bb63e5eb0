"""Tensors of an ONNX file: checks of their sizes, and integers of quantized ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
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


def quantized(
    values: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], zero: np.ndarray[Any, Any], axis: int
) -> np.ndarray[Any, Any] | None:
    """Return the integers that a QuantizeLinear writes, in the type of ``zero``.

    Args:
        values: any shape.
        scale: one scale, or one per channel of ``axis``; for other shapes the result is None.
        zero: zero point of INT8 or UINT8, one or as many as scales.
        axis: axis of the channels.
    """
    if scale.ndim:
        if not -values.ndim <= axis < values.ndim or scale.size not in (1, values.shape[axis]):
            return None
        others = [i for i in range(values.ndim) if i != axis % values.ndim]
        scale = np.expand_dims(scale.ravel(), others)
        zero = np.expand_dims(zero.ravel(), others)
    limits = np.iinfo(zero.dtype)
    shifted = np.rint(values / scale) + zero
    return np.asarray(np.clip(shifted, limits.min, limits.max).astype(zero.dtype))
