"""Put a Keras LayerNormalization, which reaches ONNX in a dozen pieces, together again as one node.

Keras writes ``x * inv + (beta - mean * inv)`` with ``inv = gamma / sqrt(variance + epsilon)``; ONNX means
``(x - mean) * inv + beta``. Both are the same number in real arithmetic. In float32 (u = 2**-24) they differ by at most
``4 * u * ((|x| + |mean|) * |inv| + |beta|)`` for an equal mean and variance; the one node has the smaller error, for it
subtracts before it multiplies.
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
"""LayerNormalization is an operator since this operator set; before, the pieces stay."""


@lowering_pass
def recover_layernorm(model: ir.Model) -> None:
    """Replace the pieces of a normalization over the last axes by one LayerNormalization.

    One over other axes (of channels in front of the image, as in ConvNeXt) stays: ONNX normalizes the last axes only,
    and the transposes around it would cost more than the pieces.
    """
    if (model.graph.opset_imports.get("") or 0) < OLDEST_OPSET:
        return
    for node in list(model.graph):
        data, axes = operand(node, 0), _trailing_axes(node)
        if data is None or axes is None or node.graph is not model.graph:
            continue
        found = _follow(node, data, axes)
        if found is not None:
            _write(model.graph, data, len(axes), *found)


def _write(
    graph: ir.Graph, data: ir.Value, count: int, epsilon: float, gamma: np.ndarray, beta: np.ndarray, last: ir.Node
) -> None:
    parameters = [add_constant(graph, array, f"{last.name}/{key}") for key, array in (("g", gamma), ("b", beta))]
    normalize = new_node(
        "LayerNormalization",
        [data, *parameters],
        {"axis": -count, "epsilon": epsilon},
        origin=last,
        shape=last.outputs[0].shape,
    )
    replace(last.outputs[0], insert_before(last, normalize))


def _trailing_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a ReduceMean that keeps them, when they are the last ones and of known size."""
    shape = dims(operand(node, 0))
    if not is_op(node, "ReduceMean") or shape is None or not attribute(node, "keepdims", 1):
        return None
    given = constant(operand(node, 1)) if len(node.inputs) > 1 else attribute(node, "axes")
    axes = sorted(int(axis) % len(shape) for axis in given) if given is not None else []
    if not axes or axes != list(range(axes[0], len(shape))) or None in shape[axes[0] :]:
        return None
    return tuple(axes)


def _follow(
    mean: ir.Node, data: ir.Value, axes: tuple[int, ...]
) -> tuple[float, np.ndarray, np.ndarray, ir.Node] | None:
    """Return epsilon, gamma, beta and the last node of the normalization that begins with ``mean``."""
    centered = _reader(mean.outputs[0], "Sub", first=data)
    square = _reader(None if centered is None else centered.outputs[0], "Mul")
    if centered is None or square is None or any(x is not centered.outputs[0] for x in square.inputs):
        return None
    variance = _reader(square.outputs[0], "ReduceMean")
    padded = _reader(variance.outputs[0], "Add") if variance is not None and _trailing_axes(variance) == axes else None
    root = _reader(None if padded is None else padded.outputs[0], "Sqrt")
    inverse = _reader(None if root is None else root.outputs[0], "Reciprocal")
    negative = _reader(mean.outputs[0], "Neg")
    if padded is None or inverse is None or negative is None:
        return None
    epsilon = next((x for x in map(scalar, padded.inputs) if x is not None), None)
    shape = tuple(d for d in (dims(data) or ())[axes[0] :] if d is not None)
    factor, gamma = _with_constant(inverse, "Mul", shape, np.ones(shape, np.float32))
    scaled, shift = _product(factor.outputs[0], data), _product(factor.outputs[0], negative.outputs[0])
    if epsilon is None or scaled is None or shift is None:
        return None
    offset, beta = _with_constant(shift, "Add", shape, np.zeros(shape, np.float32))
    last = _reader(offset.outputs[0], "Add")
    if last is None or set(last.inputs) != {scaled.outputs[0], offset.outputs[0]}:
        return None
    return epsilon, gamma, beta, last


def _reader(value: ir.Value | None, op_type: str, *, first: ir.Value | None = None) -> ir.Node | None:
    """Return the only operator of a type that reads ``value`` (with ``first`` as its first operand)."""
    if value is None:
        return None
    found = [n for n in consumers(value) if is_op(n, op_type) and (first is None or n.inputs[0] is first)]
    return found[0] if len(found) == 1 else None


def _product(one: ir.Value, other: ir.Value) -> ir.Node | None:
    """Return the Mul of two values."""
    return next((n for n in consumers(one) if is_op(n, "Mul") and set(n.inputs) == {one, other}), None)


def _with_constant(
    node: ir.Node, op_type: str, shape: tuple[int, ...], absent: np.ndarray
) -> tuple[ir.Node, np.ndarray]:
    """Return the operator behind ``node`` that applies a constant of the normalized shape, and the constant."""
    for reader in consumers(node.outputs[0]):
        arrays = [x for x in map(constant, reader.inputs) if x is not None]
        if is_op(reader, op_type) and len(arrays) == 1 and arrays[0].dtype == np.float32:
            (array,) = arrays
            rest = array.shape[: max(array.ndim - len(shape), 0)]
            if all(d == 1 for d in rest):
                return reader, np.broadcast_to(array.reshape(array.shape[len(rest) :]), shape).copy()
    return node, absent
