"""Operators without weights: pools, and operators with INT8 kernels in TensorRT."""

from __future__ import annotations

from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph

AVERAGE_POOLS = onnx_operators("average pool")
MAX_POOLS = onnx_operators("max pool")
#: Elementwise operators that have INT8 kernels when everything around them is INT8.
INT8_ELEMENTWISE = onnx_operators("int8")
#: Operators that always compute in floating point.
FLOAT_ONLY = onnx_operators("float")
#: Operators whose floating-point kernels merge with those of their kind.
POINTWISE = onnx_operators("pointwise")


def is_average_pool(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` averages over the image.

    The mean that a normalization subtracts does not.
    """
    if node.op != "ReduceMean":
        return node.op in AVERAGE_POOLS
    for reader in graph.consumers(node.outputs[0]):
        if reader.op == "Sub" and node.input(0) in reader.inputs:
            return False
    rank = len(graph.shape(node.input(0)) or ())
    given = graph.value(node.input(1)) if node.input(1) else node.integers("axes")
    if given is None or rank < 3:
        return False
    axes = sorted(int(axis) % rank for axis in given)
    return axes in (list(range(1, rank - 1)), list(range(2, rank)))


def is_pool(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` pools over the image."""
    return node.op in MAX_POOLS or is_average_pool(graph, node)
