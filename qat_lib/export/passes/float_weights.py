"""Store quantized weights as FP32 + Q + DQ (TensorRT <= 8.6)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    FACTOR,
    LEARNED,
    QUANTIZER,
    add_constant,
    attribute,
    constant,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    set_int,
)


@lowering_pass
def store_float_weights(model: ir.Model) -> None:
    """Replace ``INT8 -> DQ`` by ``FP32 -> Q -> DQ``.

    Scale and integers do not change. The stored floats are ``integers * scale``, in the middle of
    their quantization step, so that the rounding of a runtime's division has no effect.
    """
    for node in list(model.graph):
        integers = constant(node.inputs[0]) if is_op(node, "DequantizeLinear") else None
        scale = None if integers is None else constant(node.inputs[1])
        if integers is None or scale is None:
            continue
        axis = attribute(node, "axis", 1)
        # The scales along the axis of the channels, to broadcast over the integers.
        shape = [-1 if i == axis else 1 for i in range(integers.ndim)] if scale.ndim else []
        weight = (integers.astype(np.float32) * scale.reshape(shape)).astype(np.float32)
        name = node.meta.get(QUANTIZER, "weight")
        quantize = new_node(
            "QuantizeLinear",
            [add_constant(model.graph, weight, f"{name}/weight"), node.inputs[1], node.inputs[2]],
            origin=node,
            shape=integers.shape,
            dtype=ir.DataType.INT8,
        )
        set_int(quantize, "axis", axis)
        quantize.meta.update(
            {key: node.meta[key] for key in (QUANTIZER, FACTOR, LEARNED) if key in node.meta}
        )
        node.replace_input_with(0, insert_before(node, quantize))
