"""Operators without weights: pools, and operators with INT8 kernels in TensorRT."""

from __future__ import annotations

from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph

AVERAGE_POOLS = onnx_operators("average pool")
MAX_POOLS = onnx_operators("max pool")
#: Elementwise operators with INT8 kernels if all inputs and outputs are INT8.
INT8_ELEMENTWISE = onnx_operators("int8")
#: Operators without INT8 kernels.
FLOAT_ONLY = onnx_operators("float")
#: Operators with mergeable floating-point kernels.
POINTWISE = onnx_operators("pointwise")


def is_average_pool(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` averages over the image, outside of a normalization."""
    if node.op != "ReduceMean":
        return node.op in AVERAGE_POOLS
    # A mean subtracted from its own input is part of a normalization.
    for reader in graph.consumers(node.outputs[0]):
        if reader.op == "Sub" and node.input(0) in reader.inputs:
            return False
    rank = len(graph.shape(node.input(0)) or ())
    given = graph.value(node.input(1)) if node.input(1) else node.integers("axes")
    if given is None or rank < 3:
        return False
    axes = sorted(int(axis) % rank for axis in given)
    # Spatial axes of channels-last and channels-first images.
    return axes in (list(range(1, rank - 1)), list(range(2, rank)))


def is_pool(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` pools over the image."""
    return node.op in MAX_POOLS or is_average_pool(graph, node)
