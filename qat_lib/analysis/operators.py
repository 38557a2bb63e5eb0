"""What TensorRT does with an operator without weights: which are pools, and which have INT8 kernels."""

from __future__ import annotations

from qat_lib.onnx_view.graph import Node, OnnxGraph

AVERAGE_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
MAX_POOLS = frozenset({"MaxPool", "GlobalMaxPool"})
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
_ACTIVATIONS = (
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Tanh",
    "Gelu",
    "Elu",
    "Selu",
    "Celu",
    "Mish",
)
_FUNCTIONS = ("Softplus", "Softsign", "Erf", "Exp", "Log", "Sqrt", "Pow", "Reciprocal")
_NORMALIZATIONS = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "LpNormalization",
    "LRN",
)
#: Elementwise operators that have INT8 kernels when everything around them is INT8.
INT8_ELEMENTWISE = frozenset({*_ARITHMETIC, "BatchNormalization", "LeakyRelu", "PRelu", "Clip"})
#: Operators that always compute in floating point.
FLOAT_ONLY = frozenset(
    {*_ACTIVATIONS, *_FUNCTIONS, *_NORMALIZATIONS, "Softmax", "LogSoftmax", "Sin", "Cos"}
)
#: Operators whose floating-point kernels merge with those of their kind.
POINTWISE = INT8_ELEMENTWISE.union(
    _ACTIVATIONS, _FUNCTIONS, ("Relu", "Neg", "Abs", "Cast", "Where", "Mean")
)


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
