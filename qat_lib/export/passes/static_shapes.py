"""Make a Reshape's target constant if at most one dimension is open.

Keras computes the target from the batch size at run time (Shape, Gather, Concat in ONNX). With one
open dimension, a -1 is equivalent and removes the shape arithmetic (run on the host by TensorRT).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import add_constant, constant, dims, is_op, lowering_pass, operand


def infer_shapes(model: ir.Model) -> None:
    """Add inferred shapes to the known ones."""
    from onnx_ir.passes.common import ShapeInferencePass

    ShapeInferencePass(check_type=False, strict_mode=False)(model)


@lowering_pass
def fix_reshape_targets(model: ir.Model) -> None:
    """Replace computed Reshape targets by constants with at most one -1."""
    infer_shapes(model)
    for node in model.graph:
        if not is_op(node, "Reshape") or constant(operand(node, 1)) is not None:
            continue
        shape = dims(node.outputs[0])
        # One open size can be -1; 0 means the size of the input.
        if shape is None or sum(d is None for d in shape) > 1 or 0 in shape:
            continue
        target = np.asarray([-1 if d is None else d for d in shape], np.int64)
        node.replace_input_with(1, add_constant(model.graph, target, f"{node.name}/shape"))
