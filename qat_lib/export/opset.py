"""Conversion of a graph to another ONNX operator set, by ONNX's version converter."""

from __future__ import annotations

from typing import Any

from qat_lib.errors import ExportError


def change_opset(proto: Any, opset: int, written: int) -> Any:
    """Return a model of operator set ``written`` converted to ``opset``.

    Raises:
        ExportError: the converter does not support an operator in ``opset``.
    """
    import onnx

    del proto.opset_import[:]
    proto.opset_import.append(onnx.helper.make_opsetid("", written))
    older = opset < written
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except (RuntimeError, ValueError) as error:
        raise ExportError(
            f"ONNX's version converter could not {'lower' if older else 'raise'} the graph to "
            f"operator set {opset}: {error}. "
            f"Export with operator set {written} or {'newer' if older else 'older'}."
        ) from error
