"""Store weights of at most 4 bits as INT4, half the size of INT8."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import QUANTIZER, add_constant, constant, is_op, lowering_pass
from qat_lib.export.passes.activation_ranges import find_range
from qat_lib.export.ranges import LearnedRange

INT4 = ir.DataType.INT4
LEAST, GREATEST = -8, 7


@lowering_pass
def store_int4_weights(model: ir.Model, ranges: Mapping[str, LearnedRange]) -> None:
    """Replace the INT8 initializers of narrow weights by INT4 ones.

    Weights outside of -8 to 7 remain INT8, such as -8 after a sign flip by a folded
    BatchNormalization.
    """
    stored: dict[ir.Value, ir.Value] = {}
    for node in model.graph:
        integers = constant(node.inputs[0]) if is_op(node, "DequantizeLinear") else None
        if integers is None or find_range(node.meta[QUANTIZER], ranges).num_bits > 4:
            continue
        if integers.size and (integers.min() < LEAST or integers.max() > GREATEST):
            continue
        for index in (0, 2):  # integers and zero point
            value = node.inputs[index]
            if value is None:
                continue
            # Several nodes can read one initializer, such as a shared zero point.
            if value not in stored:
                array = np.asarray(constant(value))
                stored[value] = add_constant(
                    model.graph, array.astype(INT4.numpy()), str(value.name)
                )
            node.replace_input_with(index, stored[value])
