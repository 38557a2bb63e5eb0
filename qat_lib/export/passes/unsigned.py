"""Write the Q/DQ of non-negative tensors as UINT8, for fast CPU kernels.

A signed quantizer of a non-negative tensor uses the integers 0 to 127 only. If the tensor is
clipped at its range and quantized to UINT8 with the same scale and zero point 0, the integers are
equal bit for bit. For CPU runtimes; TensorRT supports signed INT8 only.

A Concat runs in INT8 only if all of its inputs have one type: beside a tensor that is written
signed, the others keep their signed integers, too.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    QUANTIZER,
    add_constant,
    constant,
    consumers,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    producer,
    scalar,
)
from qat_lib.export.passes.padding import is_non_negative


@lowering_pass
def quantize_unsigned(model: ir.Model) -> None:
    """Clip to ``[0, 127 * scale]`` and quantize non-negative activations to UINT8."""
    graph = model.graph
    chosen = [node for node in graph if is_op(node, "QuantizeLinear") and _can_be_unsigned(node)]
    for quantize in _without_mixed_concats(graph, chosen):
        source, readers = quantize.inputs[0], consumers(quantize.outputs[0])
        scale = constant(operand(quantize, 1))
        assert source is not None
        assert scale is not None
        name = str(quantize.meta.get(QUANTIZER, quantize.name))
        step = scale.reshape(())
        low, high = np.zeros((), scale.dtype), np.asarray(step * scale.dtype.type(127))
        data: ir.Value | None = source
        origin = quantize
        before = producer(source)
        if (
            before is not None
            and only_consumer(source) is quantize
            and is_op(before, "Relu", "Clip")
        ):
            # The new Clip replaces a Relu or Clip with this Q as its only reader.
            top = scalar(operand(before, 2))
            if operand(before, 2) is None or top is not None:
                data, origin = before.inputs[0], before
                low = np.asarray(scalar(operand(before, 1)) or 0.0, scale.dtype)
                high = high if top is None else np.minimum(high, scale.dtype.type(top))
        # The upper bound keeps the saturation at 127 steps, because UINT8 alone would allow 255.
        bounds = [
            add_constant(graph, low, f"{name}/low"),
            add_constant(graph, high, f"{name}/high"),
        ]
        clip = new_node(
            "Clip", [data, *bounds], origin=origin, shape=source.shape, dtype=source.dtype
        )
        quantize.replace_input_with(0, insert_before(quantize, clip))
        zero_point = add_constant(graph, np.zeros((), np.uint8), f"{name}/zero_point")
        for node in (quantize, *readers):
            node.replace_input_with(2, zero_point)
        quantize.outputs[0].dtype = ir.DataType.UINT8


def _can_be_unsigned(quantize: ir.Node) -> bool:
    source, scale = operand(quantize, 0), constant(operand(quantize, 1))
    if source is None or scale is None or scale.size != 1 or constant(source) is not None:
        return False
    if quantize.outputs[0].dtype == ir.DataType.UINT8:  # Trained unsigned, with 255 steps.
        return False
    # An integer operator behind the Q would have to be changed, too.
    readers = consumers(quantize.outputs[0])
    return is_non_negative(source) and all(is_op(node, "DequantizeLinear") for node in readers)


def _without_mixed_concats(graph: ir.Graph, chosen: list[ir.Node]) -> list[ir.Node]:
    """Return the quantizers without those that a Concat joins with signed ones."""
    joints = []
    for node in graph:
        if is_op(node, "Concat"):
            pairs = [_quantizer_of(value) for value in node.inputs]
            joints.append([quantize for quantize in pairs if quantize is not None])
    # A quantizer removed for one Concat can leave another one with mixed signs.
    kept, before = set(chosen), -1
    while before != len(kept):
        before = len(kept)
        for joint in joints:
            if any(
                node not in kept and node.outputs[0].dtype != ir.DataType.UINT8 for node in joint
            ):
                kept.difference_update(joint)
    return [node for node in chosen if node in kept]


def _quantizer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear of a value that a Q/DQ pair writes."""
    dequantize = None if value is None else producer(value)
    if dequantize is None or not is_op(dequantize, "DequantizeLinear"):
        return None
    integers = operand(dequantize, 0)
    found = None if integers is None else producer(integers)
    return found if found is not None and is_op(found, "QuantizeLinear") else None
