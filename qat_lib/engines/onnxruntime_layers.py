"""Read the layers of a graph optimized by ONNX Runtime from the graph itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qat_lib.engines.values import EngineLayer
from qat_lib.graph.roles import onnx_operators

# Operators with weights, and the index of the weight input. Operators of the second table read and
# multiply INT8.
_FLOAT_WEIGHTED = {
    **dict.fromkeys(onnx_operators("weighted"), 1),
    "FusedConv": 1,
    "NhwcFusedConv": 1,
    "FusedGemm": 1,
    "FusedMatMul": 1,
    "MatMulNBits": 1,  # INT8 weights, but it multiplies in FP32
}
_INT8_WEIGHTED = {
    **dict.fromkeys(onnx_operators("integer weighted"), 1),
    "QLinearConv": 3,
    "QGemm": 3,
    "QLinearMatMul": 3,
    "MatMulIntegerToFloat": 1,
    "DynamicQuantizeMatMul": 1,
}


def read_optimized_graph(data: bytes, nodes: Mapping[str, str]) -> list[EngineLayer]:
    """Return the layers of a serialized optimized graph.

    Args:
        data: the ONNX model.
        nodes: node of the original graph by each of its possible names.
    """
    import onnx

    graph = onnx.load_model_from_string(data).graph
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    # A DQ of a constant is a weight in float form.
    restored = {
        node.output[0]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in constants
    }
    types = _types(graph)
    layers = []
    for index, node in enumerate(graph.node):
        if node.op_type == "Constant":
            continue
        port = _INT8_WEIGHTED.get(node.op_type, _FLOAT_WEIGHTED.get(node.op_type))
        shown = [node.name, *node.output]
        known = dict.fromkeys(nodes[name] for name in shown if name in nodes)
        layers.append(
            EngineLayer(
                name=node.name or f"{node.op_type}_{index}",
                kind=node.op_type,
                nodes=tuple(known) or ((node.name,) if node.name in nodes.values() else ()),
                precision="int8" if node.op_type in _INT8_WEIGHTED else _precision(node, types),
                weighted=port is not None
                and len(node.input) > port
                and node.input[port] in constants | restored,
                output_precision=types.get(node.output[0], ""),
                kernel=f"{node.domain or 'ai.onnx'}:{node.op_type}",
            )
        )
    return layers


def _types(graph: Any) -> dict[str, str]:
    """Return the precision of tensors with a type from the graph or a Q/DQ node."""
    import onnx

    names = {
        onnx.TensorProto.FLOAT: "fp32",
        onnx.TensorProto.FLOAT16: "fp16",
        onnx.TensorProto.INT8: "int8",
        onnx.TensorProto.UINT8: "int8",
    }
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: names.get(value.type.tensor_type.elem_type, "other") for value in values}
    types |= {tensor.name: names.get(tensor.data_type, "other") for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type.startswith("Q") and node.op_type != "QGemm":
            types[node.output[0]] = "int8"
        elif node.op_type == "DequantizeLinear":
            types[node.output[0]] = "fp32"
    return types


def _precision(node: Any, types: Mapping[str, str]) -> str:
    if node.op_type.startswith("QLinear"):
        return "int8"
    return types.get(node.input[0], types.get(node.output[0], "fp32")) if node.input else "fp32"
