"""Quantize in front of a max pool instead of behind it: the maximum of integers is the integer of the maximum.

The same numbers come out, and the pool runs on bytes. OpenVINO fuses the quantization into the convolution that way;
TensorRT moves it there by itself.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import constant, is_op, lowering_pass, only_consumer, operand, replace


@lowering_pass
def quantize_before_max_pools(model: ir.Model) -> None:
    """Turn ``MaxPool -> Q -> DQ`` into ``Q -> DQ -> MaxPool`` where the pool's output is read by the Q alone."""
    graph = model.graph
    for pool in list(graph):
        quantize = only_consumer(pool.outputs[0]) if is_op(pool, "MaxPool") and len(pool.outputs) == 1 else None
        dequantize = only_consumer(quantize.outputs[0]) if is_op(quantize, "QuantizeLinear") and quantize else None
        source = pool.inputs[0]
        if quantize is None or dequantize is None or source is None or only_consumer(source) is not pool:
            continue
        scale = constant(operand(quantize, 1))
        if not is_op(dequantize, "DequantizeLinear") or scale is None or scale.size != 1:
            continue
        pooled, result = pool.outputs[0], dequantize.outputs[0]
        shape = pooled.shape
        quantize.replace_input_with(0, source)
        replace(result, pooled)
        pool.replace_input_with(0, result)
        quantize.outputs[0].shape = result.shape = source.shape
        pooled.shape = shape
