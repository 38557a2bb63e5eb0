"""Quantize in front of max pools and DepthToSpace, and behind ReLUs, with an exact result.

Quantization is monotonic, so the result is the same, and pools run on bytes. OpenVINO fuses the
quantization into the convolution that way; TensorRT moves it there itself. Behind several ReLUs of
one quantized tensor, as in NASNet, OpenVINO would run convolutions in float.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import (
    consumers,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    replace,
)
from qat_lib.export.passes.transposes import has_many_scales


@lowering_pass
def quantize_early(model: ir.Model) -> None:
    """Turn ``MaxPool -> Q -> DQ`` into ``Q -> DQ -> MaxPool``, and likewise for DepthToSpace."""
    for pool in list(model.graph):
        source, quantize = operand(pool, 0), only_consumer(pool.outputs[0])
        if (
            not is_op(pool, "MaxPool", "DepthToSpace")
            or len(pool.outputs) > 1
            or not is_op(quantize, "QuantizeLinear")
        ):
            continue
        dequantize = only_consumer(quantize.outputs[0])
        if not is_op(dequantize, "DequantizeLinear") or has_many_scales(quantize):
            continue
        # Other readers would have to get the quantized tensor or a second kernel.
        if source is None or only_consumer(source) is not pool:
            continue
        # Rewire: the readers of the DQ read the pool, the Q reads the source, and the pool reads
        # the DQ.
        pooled, result = pool.outputs[0], dequantize.outputs[0]
        quantize.replace_input_with(0, source)
        replace(result, pooled)
        pool.replace_input_with(0, result)
        quantize.outputs[0].shape = result.shape = source.shape


@lowering_pass
def rectify_early(model: ir.Model) -> None:
    """Turn ``Q -> DQ -> several ReLUs`` into ``ReLU -> Q -> DQ``."""
    for quantize in list(model.graph):
        source, dequantize = operand(quantize, 0), only_consumer(quantize.outputs[0])
        if not is_op(quantize, "QuantizeLinear") or not is_op(dequantize, "DequantizeLinear"):
            continue
        result = dequantize.outputs[0]
        relus = [reader for reader in consumers(result) if is_op(reader, "Relu")]
        others = len(consumers(result)) > len(relus) or result.is_graph_output()
        if source is None or len(relus) < 2 or others:
            continue
        relu = new_node("Relu", [source], origin=relus[0], shape=source.shape, dtype=source.dtype)
        quantize.replace_input_with(0, insert_before(quantize, relu))
        for reader in relus:
            replace(reader.outputs[0], result)
            model.graph.remove(reader, safe=True)
