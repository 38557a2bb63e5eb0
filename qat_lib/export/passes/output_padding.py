"""Express the extent of a transposed convolution beyond its last value by ``output_padding``.

With a kernel smaller than its stride, or with Keras's ``output_padding``, the last positions
consist of the bias only. tf2onnx writes that as negative pads, half of them in front, and ONNX
rejects them; TensorFlow has all of them at the end.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import attribute, is_op, lowering_pass, set_ints


@lowering_pass
def use_output_padding(model: ir.Model) -> None:
    """Replace negative pads of each ConvTranspose by zero pads and ``output_padding``."""
    for node in model.graph:
        pads = attribute(node, "pads", [])
        if not is_op(node, "ConvTranspose") or all(pad >= 0 for pad in pads):
            continue
        before, after = pads[: len(pads) // 2], pads[len(pads) // 2 :]
        # Only the total counts: tf2onnx splits it, TensorFlow puts it at the end.
        totals = np.add(before, after)
        set_ints(node, "pads", np.where(np.tile(totals, 2) < 0, 0, pads).tolist())
        set_ints(node, "output_padding", np.maximum(-totals, 0).tolist())
