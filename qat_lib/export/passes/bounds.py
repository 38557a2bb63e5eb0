"""Remove bounds in front of a quantizer that saturates at them or within them.

``Q(min(x, c))`` and ``Q(x)`` are equal bit for bit if each value of the constant ``c`` is at the
top of the range or beyond it (``qat_lib.ChannelReLU`` has such bounds); so are ``Q(relu(x))`` and
``Q(x)`` if ``Q`` is unsigned. The convolution in front then writes its integers without a clamp in
between.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    constant,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    producer,
    scalar,
)

RANGES = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}
"""Least and greatest integer of each type."""
_OPEN = ((1, -np.inf), (2, np.inf))
"""Inputs of a Clip with the values of absent bounds."""


@lowering_pass
def remove_redundant_bounds(model: ir.Model) -> None:
    """Remove each Min, Relu or Clip in front of a Q that saturates at its bounds or within them.

    The Q must be the only reader of the bounds.
    """
    for quantize in list(model.graph):
        if not is_op(quantize, "QuantizeLinear") or quantize.outputs[0].dtype not in RANGES:
            continue
        bounded, scale = producer(quantize.inputs[0]), constant(operand(quantize, 1))
        if bounded is None or scale is None or scale.size != 1:
            continue
        if only_consumer(bounded.outputs[0]) is not quantize:
            continue
        found = _source_and_bounds(bounded)
        if found is None:
            continue
        source, *bounds = found
        # Rounded as in the Q: a bound just within the range still gives its last integer.
        with np.errstate(over="ignore"):
            low, high = (np.rint(bound.astype(np.float32) / scale.reshape(())) for bound in bounds)
        least, greatest = RANGES[quantize.outputs[0].dtype]
        if np.all(low <= least) and np.all(high >= greatest):
            # Not `replace`: the input of the bounds is another tensor of the Keras model.
            quantize.replace_input_with(0, source)


def _source_and_bounds(node: ir.Node) -> tuple[ir.Value, np.ndarray, np.ndarray] | None:
    """Return the operand of a node with constant bounds, and these; None for other nodes."""
    source, infinite = operand(node, 0), np.asarray(np.inf)
    if is_op(node, "Relu") and source is not None:
        return source, np.asarray(0.0), infinite
    if is_op(node, "Clip") and source is not None:
        low, high = (scalar(value) if (value := operand(node, i)) else b for i, b in _OPEN)
        return None if low is None or high is None else (source, np.asarray(low), np.asarray(high))
    if not is_op(node, "Min") or len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, reversed(node.inputs)):
        bound = constant(other)
        if value is None or bound is None or not bound.size or constant(value) is not None:
            continue
        # A constant may also broadcast the operand to a larger shape.
        if value.shape is not None and value.shape == node.outputs[0].shape:
            return value, -infinite, bound
    return None
