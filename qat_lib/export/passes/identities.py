"""Remove operators without effect: Identity, inference Dropout, redundant casts, times one."""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import attribute, constant, is_op, lowering_pass, operand, replace


def _unchanged(node: ir.Node) -> ir.Value | None:
    """Return the input that the operator passes on; None if it has an effect."""
    source = operand(node, 0)
    if is_op(node, "Mul"):  # TensorFlow writes SiLU as x * sigmoid(1 * x).
        return next(
            (x for one, x in zip(node.inputs, reversed(node.inputs), strict=True) if _is_one(one)),
            None,
        )
    return source if source is not None and _changes_nothing(node, source) else None


def _is_one(value: ir.Value | None) -> bool:
    array = constant(value)
    return array is not None and array.ndim == 0 and array == 1


def _changes_nothing(node: ir.Node, source: ir.Value) -> bool:
    if is_op(node, "Identity"):
        return True
    if is_op(node, "Dropout"):
        mode = constant(operand(node, 2))
        # A mask output with readers keeps the Dropout.
        return (operand(node, 2) is None or (mode is not None and not mode.any())) and not any(
            output.uses() for output in node.outputs[1:]
        )
    if is_op(node, "Cast"):
        return source.dtype == ir.DataType(attribute(node, "to"))
    if is_op(node, "Transpose"):
        perm = attribute(node, "perm")
        return perm is not None and perm == sorted(perm)
    if is_op(node, "Pad"):
        pads = constant(operand(node, 1))
        return pads is not None and not pads.any()
    if is_op(node, "Concat", "Sum", "Max", "Min"):
        return len(node.inputs) == 1
    return False


@lowering_pass
def remove_identities(model: ir.Model) -> None:
    """Remove operators without effect; outputs of the graph keep their names."""
    for node in list(model.graph):
        source = _unchanged(node)
        if source is None:
            continue
        output = node.outputs[0]
        if output.is_graph_output() and (
            source.is_graph_input() or source.is_initializer() or source.is_graph_output()
        ):
            continue  # A graph output can't be an input, an initializer or another output.
        replace(output, source)
        model.graph.remove(node, safe=True)
