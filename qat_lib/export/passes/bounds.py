"""Remove an upper bound in front of a quantizer that saturates at the bound or below.

``Q(min(x, c))`` and ``Q(x)`` are equal bit for bit if each value of the constant ``c`` is at the
top of the range or beyond it. ``qat_lib.ChannelReLU`` has such bounds.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import constant, is_op, lowering_pass, only_consumer, operand, producer

TOPS = {ir.DataType.INT8: 127, ir.DataType.UINT8: 255}
"""Greatest integer of each type."""


@lowering_pass
def remove_redundant_bounds(model: ir.Model) -> None:
    """Remove each constant Min in front of a Q that saturates at the constant or below.

    The Q must be the only reader of the Min.
    """
    for quantize in list(model.graph):
        if not is_op(quantize, "QuantizeLinear") or quantize.outputs[0].dtype not in TOPS:
            continue
        bounded = producer(quantize.inputs[0])
        scale = constant(operand(quantize, 1))
        if bounded is None or scale is None or scale.size != 1:
            continue
        if not is_op(bounded, "Min") or only_consumer(bounded.outputs[0]) is not quantize:
            continue
        # The Q clips at scale times its largest integer, so a Min at or above that has no effect.
        source = _bounded_by(bounded, scale.reshape(()), TOPS[quantize.outputs[0].dtype])
        if source is not None:
            quantize.replace_input_with(0, source)


def _bounded_by(node: ir.Node, scale: np.ndarray, top: int) -> ir.Value | None:
    """Return the operand of a Min, if its constant reaches the top of the range."""
    if len(node.inputs) != 2:
        return None
    for value, other in (node.inputs, reversed(node.inputs)):
        bound = constant(other)
        if value is None or bound is None or constant(value) is not None:
            continue
        # Rounded like in the Q: a bound just below the top still gives the top integer.
        integers = np.rint(bound.astype(np.float32) / scale.astype(np.float32))
        # A constant may also broadcast the operand to a larger shape.
        is_same_shape = value.shape is not None and value.shape == node.outputs[0].shape
        if bound.size and is_same_shape and bool(np.all(integers >= top)):
            return value
    return None
