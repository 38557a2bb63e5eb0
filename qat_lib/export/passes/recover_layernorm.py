"""Replace the pieces of a LayerNormalization by one node.

Keras computes ``x * inv + (beta - mean * inv)`` with ``inv = gamma / sqrt(variance + epsilon)``;
ONNX defines ``(x - mean) * inv + beta``. Both are equal in real arithmetic. In float32 (u = 2**-24)
they differ by at most ``4 * u * ((|x| + |mean|) * |inv| + |beta|)`` for equal mean and variance;
the single node has the smaller error, because it subtracts before it multiplies.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    consumers,
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    replace,
    scalar,
)

OLDEST_OPSET = 17
"""First operator set with LayerNormalization; in older sets, the pieces remain."""


@lowering_pass
def recover_layernorm(model: ir.Model) -> None:
    """Replace a normalization's pieces over the last axes by one LayerNormalization.

    Normalizations over other axes (channels in front of the image, as in ConvNeXt) remain: ONNX
    normalizes the last axes only, and the required transposes would cost more than the pieces.
    """
    if model.graph.opset_imports[""] < OLDEST_OPSET:
        return
    for node in list(model.graph):
        found = _follow(node)
        if found is not None:
            _write(model.graph, *found)


def _write(
    graph: ir.Graph,
    data: ir.Value,
    epsilon: float,
    gamma: np.ndarray,
    beta: np.ndarray,
    last: ir.Node,
) -> None:
    scale = add_constant(graph, gamma, f"{last.name}/g")
    shift = add_constant(graph, beta, f"{last.name}/b")
    (output,) = last.outputs
    normalize = new_node(
        "LayerNormalization",
        [data, scale, shift],
        {"axis": -gamma.ndim, "epsilon": epsilon},
        origin=last,
        shape=output.shape,
    )
    replace(output, insert_before(last, normalize))


def _normalized_shape(node: ir.Node) -> tuple[int, ...] | None:
    """Return the sizes of a keep-dimensions ReduceMean's last axes, else None."""
    shape = dims(operand(node, 0))
    if not is_op(node, "ReduceMean") or shape is None or not attribute(node, "keepdims", 1):
        return None
    given = constant(operand(node, 1)) if len(node.inputs) > 1 else attribute(node, "axes")
    axes = sorted(int(axis) % len(shape) for axis in given) if given is not None else []
    # LayerNormalization normalizes from one axis to the last.
    if not axes or axes != list(range(axes[0], len(shape))):
        return None
    sizes = tuple(size for size in shape[axes[0] :] if size is not None)
    return sizes if len(sizes) == len(axes) else None


def _follow(mean: ir.Node) -> tuple[ir.Value, float, np.ndarray, np.ndarray, ir.Node] | None:
    """Return data, epsilon, gamma, beta and last node of the normalization behind ``mean``."""
    data, shape = operand(mean, 0), _normalized_shape(mean)
    steps = _chain(mean, "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal")
    negative = _chain(mean, "Neg")
    if (
        data is None
        or shape is None
        or data.dtype != ir.DataType.FLOAT
        or not steps
        or not negative
    ):
        return None
    centered, square, variance, padded, _, inverse = steps
    # The variance is the mean of the centered data times itself.
    if list(centered.inputs) != [data, *mean.outputs] or set(square.inputs) != set(
        centered.outputs
    ):
        return None
    epsilon = next((x for x in map(scalar, padded.inputs) if x is not None), None)
    factor, gamma = _with_constant(inverse, "Mul", np.ones(shape, np.float32))
    scaled, shift = _product(factor, data), _product(factor, *negative[0].outputs)
    if _normalized_shape(variance) != shape or epsilon is None or scaled is None or shift is None:
        return None
    offset, beta = _with_constant(shift, "Add", np.zeros(shape, np.float32))
    last = _chain(offset, "Add")
    if not last or set(last[0].inputs) != {*scaled.outputs, *offset.outputs}:
        return None
    return data, epsilon, gamma, beta, last[0]


def _chain(node: ir.Node, *op_types: str) -> list[ir.Node]:
    """Return the chain of ``op_types`` behind ``node``, else an empty list.

    Each must be the only reader of its type.
    """
    found: list[ir.Node] = []
    for op_type in op_types:
        readers = _readers(node, op_type)
        if len(readers) != 1:
            return []
        (node,) = readers
        found.append(node)
    return found


def _readers(node: ir.Node, op_type: str) -> list[ir.Node]:
    """Return the operators of one type that read outputs of ``node``."""
    found: list[ir.Node] = []
    for value in node.outputs:
        found += filter(lambda reader: is_op(reader, op_type), consumers(value))
    return found


def _product(node: ir.Node, other: ir.Value) -> ir.Node | None:
    """Return the Mul of an output of a node and another value."""
    factors = {*node.outputs, other}
    for reader in consumers(other):
        if is_op(reader, "Mul") and set(reader.inputs) == factors:
            return reader
    return None


def _with_constant(node: ir.Node, op_type: str, absent: np.ndarray) -> tuple[ir.Node, np.ndarray]:
    """Return the next operator with a constant that broadcasts to ``absent``, and the constant."""
    for reader in _readers(node, op_type):
        for array in map(constant, reader.inputs):
            if array is None:
                continue
            # Keras may broadcast gamma and beta to the rank of the data.
            while array.ndim > absent.ndim and array.shape[0] == 1:
                array = array[0]
            if array.ndim <= absent.ndim:
                return reader, np.broadcast_to(array, absent.shape).copy()
    # Without scale or center, the layer has no such operator.
    return node, absent
