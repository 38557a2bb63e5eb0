"""Remove a ReLU in front of an unsigned quantizer, because the quantizer saturates at zero.

``Q(relu(x))`` and ``Q(x)`` are equal bit for bit; so are ``Q(min(relu(x), c))`` and ``Q(x)`` if
``c`` is at the top of the range or beyond it. The convolution in front then writes its bytes
without a clamp in between.
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

TOP = 255
UNBOUNDED = ((1, -np.inf), (2, np.inf))
"""Inputs of a Clip with the values of absent bounds."""


@lowering_pass
def remove_redundant_clamps(model: ir.Model) -> None:
    """Remove each Relu or redundant Clip read only by an unsigned Q."""
    for quantize in list(model.graph):
        if not is_op(quantize, "QuantizeLinear") or quantize.outputs[0].dtype != ir.DataType.UINT8:
            continue
        clamp = producer(quantize.inputs[0])
        scale = constant(operand(quantize, 1))
        if (
            clamp is None
            or scale is None
            or scale.size != 1
            or only_consumer(clamp.outputs[0]) is not quantize
        ):
            continue
        if is_op(clamp, "Relu") or (is_op(clamp, "Clip") and _is_beyond(clamp, scale.reshape(()))):
            # Not `replace`: the input of the clamp is another tensor of the Keras model.
            quantize.replace_input_with(0, clamp.inputs[0])


def _is_beyond(clip: ir.Node, scale: np.ndarray) -> bool:
    """Return whether constant bounds of a Clip are at or beyond the bounds of the integers."""
    low, high = (
        scalar(value) if (value := operand(clip, i)) is not None else bound
        for i, bound in UNBOUNDED
    )
    if low is None or high is None or low > 0:
        return False
    return float(np.rint(np.float32(high) / scale.astype(np.float32))) >= TOP
