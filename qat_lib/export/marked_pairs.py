"""Replacement of the quantizers' markers in a converted graph by Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

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
