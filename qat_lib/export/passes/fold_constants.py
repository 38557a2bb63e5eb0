"""Compute constant subgraphs: biases, pieces of a BatchNormalization, shapes.

Q and DQ nodes of weights remain: folding them would lose INT8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import add_constant, attribute, constant, is_op, lowering_pass, replace
from qat_lib.graph.roles import PAIR, onnx_operators

KEEP = PAIR | onnx_operators("random")
LARGEST_GROWTH = 1 << 20
"""Elements up to which a constant may exceed twice the size of its inputs (a larger Tile or Expand
remains a node)."""

Fold = Callable[[ir.Node, list[np.ndarray]], np.ndarray]


def _reshape(node: ir.Node, inputs: list[np.ndarray]) -> np.ndarray:
    data, shape = inputs
    target = [
        data.shape[i] if d == 0 and not attribute(node, "allowzero", 0) else int(d)
        for i, d in enumerate(shape)
    ]
    return data.reshape(target)


def _squeeze(_: ir.Node, inputs: list[np.ndarray]) -> np.ndarray:
    data, *axes = inputs
    return np.squeeze(data, *map(tuple, axes))


def _unsqueeze(_: ir.Node, inputs: list[np.ndarray]) -> np.ndarray:
    data, axes = inputs
    return np.expand_dims(data, tuple(axes))


def _cast(node: ir.Node, inputs: list[np.ndarray]) -> np.ndarray:
    (data,) = inputs
    return data.astype(ir.DataType(attribute(node, "to")).numpy())


def _transpose(node: ir.Node, inputs: list[np.ndarray]) -> np.ndarray:
    (data,) = inputs
    return np.transpose(data, attribute(node, "perm"))


def _concat(node: ir.Node, inputs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(inputs, axis=attribute(node, "axis"))


FOLDS: dict[str, Fold] = {
    "Identity": lambda _, x: np.array(*x),
    "Cast": _cast,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Add": lambda _, x: np.add(*x),
    "Sub": lambda _, x: np.subtract(*x),
    "Mul": lambda _, x: np.multiply(*x),
    "Sqrt": lambda _, x: np.sqrt(*x),
    "Reciprocal": lambda _, x: np.reciprocal(*x),
    "Neg": lambda _, x: np.negative(*x),
}
"""Operators of nearly all constant subgraphs; ONNX's reference evaluator computes the others."""


def _reference(node: ir.Node, inputs: list[np.ndarray], opset: int) -> np.ndarray | None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = ir.to_proto(node)
    feeds = dict(zip(filter(None, proto.input), inputs, strict=True))
    declared = []
    for name, x in feeds.items():
        dtype = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
        declared.append(onnx.helper.make_tensor_value_info(name, dtype, x.shape))
    graph = onnx.helper.make_graph(
        [proto], "fold", declared, [onnx.ValueInfoProto(name=x) for x in proto.output]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        (result,) = ReferenceEvaluator(model).run(None, feeds)
        return np.asarray(result)
    except Exception:  # noqa: BLE001 - nodes that the evaluator can't compute remain in the graph
        return None


@lowering_pass
def fold_constants(model: ir.Model) -> None:
    """Replace nodes with constant inputs by their values, except Q, DQ and random operators."""
    graph = model.graph
    opset = model.opset_imports[""]
    for node in list(graph):
        if node.domain not in ("", "ai.onnx") or is_op(node, *KEEP) or len(node.outputs) != 1:
            continue
        # A subgraph may read outer tensors that are not inputs of the node.
        if _has_subgraph(node):
            continue
        (output,) = node.outputs
        value = constant(output) if node.op_type == "Constant" else _value(node, opset)
        if value is not None and not output.is_graph_output():
            replace(output, add_constant(graph, value, str(output.name)))
            graph.remove(node, safe=True)


def _has_subgraph(node: ir.Node) -> bool:
    types = {attr.type for attr in node.attributes.values()}
    return not types.isdisjoint({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def _value(node: ir.Node, opset: int) -> np.ndarray | None:
    """Return the output of a node with constant inputs; None for other nodes and large outputs."""
    inputs = []
    for operand in node.inputs:
        if operand is None:
            continue
        array = constant(operand)
        if array is None:
            return None
        inputs.append(array)
    # A node without inputs is a generator, not a computation.
    if not inputs:
        return None
    fold = FOLDS.get(node.op_type)
    value = _reference(node, inputs, opset) if fold is None else np.asarray(fold(node, inputs))
    if value is not None and value.size > max(LARGEST_GROWTH, 2 * sum(x.size for x in inputs)):
        return None
    return value
