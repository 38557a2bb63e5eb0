"""Shape arithmetic: number of values propagated by ONNX's shape inference.

The inference propagates the values of integer vectors, so that a Reshape behind Shape, Gather and
Concat gets its shape. Forty Concats of a vector with itself are then 2 ** 40 values, and so is a
Range with a Cast. If this module can't bound the values, inference runs in a limited process.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx

from qat_lib.graph.roles import ARITHMETIC
from qat_lib.onnx_view.protos import subgraphs_of

#: Numbers in one vector, and in all vectors of a graph; shapes have a handful.
MAX_LENGTH = 4096
MAX_TOTAL = 1 << 22

#: Elements of a graph input; a Reshape to one dimension makes a vector of that length.
MAX_INPUT = 1 << 24

#: Operators with operands for the output size, and the positions of these operands.
_SIZED_BY = {
    "Range": (0, 1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Tile": (1,),
    "OneHot": (1,),
    "Resize": (2, 3),
    "Upsample": (1,),
}
#: A Shape's output has as many numbers as its input has dimensions.
_MAX_RANK = 64
_KEEP_LENGTH = ARITHMETIC | {"Identity", "Cast", "Slice", "Squeeze", "Unsqueeze", "Reshape"}


def shape_vectors_stay_small(graph: onnx.GraphProto) -> bool:
    """Return whether the inference's integer vectors are provably within the limits."""
    return all(_elements(value) <= MAX_INPUT for value in graph.input) and _Lengths().add(graph)


def _elements(value: onnx.ValueInfoProto) -> int:
    return prod(max(int(dim.dim_value), 1) for dim in value.type.tensor_type.shape.dim)


def _values(tensor: onnx.TensorProto) -> np.ndarray:
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError):  # damaged: the reader of the graph says so
        return np.array([np.inf])


class _Lengths:
    """Upper bounds of the lengths of propagated vectors, by tensor name."""

    def __init__(self) -> None:
        self._bounds: dict[str, int] = {}
        self._total = 0
        self._growth = 1.0
        self._small: dict[str, np.ndarray] = {}

    def add(self, graph: onnx.GraphProto) -> bool:
        for tensor in graph.initializer:
            self._add_tensor(tensor.name, tensor)
        return all(map(self._add_node, graph.node))

    def _add_tensor(self, name: str, tensor: onnx.TensorProto) -> None:
        if prod(tensor.dims) <= _MAX_RANK and tensor.HasField("raw_data"):
            self._small[name] = _values(tensor)
        # Only scalars and vectors of these types are propagated.
        integers = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
        if integers and len(tensor.dims) < 2:
            self._bounds[name] = max(prod(tensor.dims), 1)

    def _add_node(self, node: onnx.NodeProto) -> bool:
        if not self._grows_little(node):
            return False
        for attribute in node.attribute:
            if attribute.HasField("t") and node.op_type == "Constant" and node.output:
                self._add_tensor(node.output[0], attribute.t)
            if not all(map(self.add, subgraphs_of(attribute))):
                return False
        if not node.output:
            return True
        length = self._length(node)
        if length is None:
            return True
        self._bounds[node.output[0]] = length
        self._total += length
        return length <= MAX_LENGTH and self._total <= MAX_TOTAL

    def _grows_little(self, node: onnx.NodeProto) -> bool:
        """Return whether the output sizes of ``node`` are constant and small.

        The limit applies to the product of the sizes over all nodes so far.
        """
        for position in _SIZED_BY.get(node.op_type, ()):
            name = node.input[position] if position < len(node.input) else ""
            if not name:
                continue
            values = self._small.get(name)
            if values is None:
                return False
            self._growth *= max(float(np.prod(np.abs(values.astype(np.float64)))), 1.0)
        return self._growth <= MAX_INPUT

    def _length(self, node: onnx.NodeProto) -> int | None:
        """Return the output length of a node with propagated vectors; None without propagation."""
        if node.op_type == "Shape":
            return _MAX_RANK
        if node.op_type == "Size":
            return 1
        lengths = [self._bounds[name] for name in node.input if name in self._bounds]
        if not lengths:
            return None
        if node.op_type == "Concat":
            return sum(lengths)
        if node.op_type == "Gather" and node.input[0] in self._bounds:
            # Other indices than propagated vectors may have any length.
            return self._bounds.get(node.input[1], MAX_TOTAL) if len(node.input) > 1 else None
        return max(lengths) if node.op_type in _KEEP_LENGTH else None
