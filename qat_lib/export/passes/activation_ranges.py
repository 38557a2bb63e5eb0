"""Write each learned activation range into its Q/DQ pair, in canonical form.

Canonical: a scalar float32 scale, a scalar zero point of 0 in the integers' type (never absent:
ONNX would take UINT8 and TensorRT INT8), an explicit axis, the same two constants for both nodes,
and one pair per tensor and quantizer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.graph import (
    QUANTIZER,
    add_constant,
    constant,
    is_op,
    lowering_pass,
    operand,
    producer,
    replace,
    set_int,
)
from qat_lib.export.ranges import LearnedRange, check_activation_bits


def find_range(name: str, ranges: Mapping[str, LearnedRange]) -> LearnedRange:
    """Return the range of a quantizer.

    Raises:
        ExportError: no quantizer has that name.
    """
    if name not in ranges:
        raise ExportError(
            f"Expected the marker of a known quantizer. Received: {name!r}; the model has "
            f"{sorted(ranges)[:8]}. "
            "Quantizers must keep the names they were built with."
        )
    return ranges[name]


def quantizer_pairs(model: ir.Model) -> list[tuple[ir.Node, ir.Node]]:
    """Return the (Q, DQ) pairs of named quantizers, in graph order."""
    pairs = []
    for node in model.graph:
        source = producer(operand(node, 0))
        if is_op(node, "DequantizeLinear") and QUANTIZER in node.meta and source is not None:
            pairs.append((source, node))
    return pairs


@lowering_pass
def write_activation_ranges(model: ir.Model, ranges: Mapping[str, LearnedRange]) -> None:
    """Set the scale and the integer type of each activation pair.

    Raises:
        ExportError: a marker belongs to no quantizer, or an activation has several ranges or
            another width than 8 bits.
    """
    graph = model.graph
    seen: dict[tuple[ir.Value | None, str], ir.Node] = {}
    constants: dict[str, tuple[ir.Value, ir.Value]] = {}
    for quantize, dequantize in quantizer_pairs(model):
        source = quantize.inputs[0]
        # A weight: `store_quantized_weights` handles it.
        if constant(source) is not None:
            continue
        learned = find_range(dequantize.meta[QUANTIZER], ranges)
        check_activation_bits(learned)
        if np.size(learned.amax) != 1:
            raise ExportError(
                f"Expected one range for the activation that {learned.name!r} quantizes. "
                f"Received: {np.size(learned.amax)}. TensorRT takes per-channel ranges for weights "
                "only: "
                "build the quantizer without channel_axes."
            )
        # A shared quantizer may have several pairs on one tensor.
        first = seen.setdefault((source, learned.name), dequantize)
        if first is not dequantize:
            replace(dequantize.outputs[0], first.outputs[0])
            continue
        if learned.name not in constants:
            constants[learned.name] = (
                add_constant(graph, learned.scale.reshape(()), f"{learned.name}/scale"),
                add_constant(graph, np.zeros((), learned.dtype), f"{learned.name}/zero_point"),
            )
        for node in (quantize, dequantize):
            for index, value in enumerate(constants[learned.name], start=1):
                node.replace_input_with(index, value)
            set_int(node, "axis", 1)
        quantize.outputs[0].dtype = ir.DataType.UINT8 if learned.unsigned else ir.DataType.INT8
