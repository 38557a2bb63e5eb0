"""Adjust the scales of a Resize to TensorFlow's output size.

tf2onnx writes ``new size / old size`` as a float32 scale. ONNX takes the floor of size times scale,
and 12 times the float32 next to 5 / 12 is 4.99... The next larger float32 gives 5 and the same
sampling positions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import add_constant, constant, dims, is_op, lowering_pass, operand


@lowering_pass
def fix_resize_scales(model: ir.Model) -> None:
    """Enlarge each constant Resize scale until flooring gives the nearest size."""
    for node in model.graph:
        shape, scales = dims(operand(node, 0)), constant(operand(node, 2))
        if (
            not is_op(node, "Resize")
            or shape is None
            or scales is None
            or scales.size != len(shape)
        ):
            continue
        fixed = np.asarray([_reaching(d, scales[i]) for i, d in enumerate(shape)], np.float32)
        if np.any(fixed != scales):
            node.replace_input_with(2, add_constant(model.graph, fixed, f"{node.name}/scales"))
            node.outputs[0].shape = ir.Shape(map(_resized, shape, fixed))


def _resized(size: int | None, scale: np.float32) -> int | None:
    return None if size is None else int(np.floor(size * float(scale)))


def _reaching(size: int | None, scale: np.float32) -> np.float32:
    """Return the least scale >= ``scale`` that gives the nearest whole size."""
    if size is None:
        return scale
    # TensorFlow's size is whole, and the error of the float32 scale is far below 0.5.
    target = round(size * float(scale))
    while np.floor(size * float(scale)) < target:
        scale = np.nextafter(scale, np.float32(np.inf))
    return scale
