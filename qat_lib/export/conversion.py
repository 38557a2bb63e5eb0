"""Steps of the conversion to ONNX that both front ends share."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.graph import (
    QUANTIZER,
    add_constant,
    insert_before,
    is_op,
    new_node,
    replace,
)


def insert_pairs(model: ir.Model, markers: Mapping[str, str]) -> None:
    """Replace each marker by a Q/DQ pair.

    The scale is 1; a later pass writes the range.

    Args:
        model: the converted model.
        markers: tensor of each marker -> name of the quantizer.
    """
    graph = model.graph
    # Shared placeholders; passes that write ranges give each pair its own constants.
    scale = add_constant(graph, np.ones((), np.float32), "unset/scale")
    zero_point = add_constant(graph, np.zeros((), np.int8), "unset/zero_point")
    for node in list(graph):
        # A marker is an Identity with a known output name.
        if not is_op(node, "Identity"):
            continue
        (marked,), (source,) = node.outputs, node.inputs
        quantizer = markers.get(marked.name or "")
        if quantizer is None:
            continue
        int8, float32, shape = ir.DataType.INT8, ir.DataType.FLOAT, marked.shape
        quantize = new_node(
            "QuantizeLinear", [source, scale, zero_point], origin=node, shape=shape, dtype=int8
        )
        parameters = [insert_before(node, quantize), scale, zero_point]
        dequantize = new_node(
            "DequantizeLinear", parameters, origin=node, shape=shape, dtype=float32
        )
        replace(marked, insert_before(node, dequantize))
        for half in (quantize, dequantize):
            half.meta[QUANTIZER] = quantizer
        graph.remove(node, safe=True)


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


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Silence the logs of libraries within the block.

    The libraries raise the errors that they log, so no information is lost.
    """
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
