"""Merge zero padding into the following convolution or pool, if exact.

Convolutions: always (their own padding is zeros). Average pools: if the padding counts. Max pools,
padded with minus infinity: if the tensor is non-negative, so that a zero never exceeds an element
wrongly. A Q/DQ pair in between has no effect: zero is quantized to zero exactly.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    attribute,
    constant,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    producer,
    rank,
    replace,
    scalar,
    set_int,
    set_ints,
)
from qat_lib.graph.roles import onnx_operators

NON_NEGATIVE = onnx_operators("non-negative")
KEEPS_SIGN_OF_ALL = onnx_operators("sign preserving", "merge")
KEEPS_SIGN = onnx_operators("sign preserving") - KEEPS_SIGN_OF_ALL


def is_non_negative(value: ir.Value | None) -> bool:
    """Return whether ``value`` is non-negative by the graph alone."""
    node = producer(value)
    if node is None:
        array = constant(value)
        return array is not None and bool(np.all(array >= 0))
    if is_op(node, *NON_NEGATIVE):
        return True
    if is_op(node, "Clip"):
        low = scalar(operand(node, 1))
        return low is not None and low >= 0
    if is_op(node, *KEEPS_SIGN):
        return is_non_negative(node.inputs[0])
    if is_op(node, "Pad"):
        return is_non_negative(node.inputs[0]) and (
            operand(node, 2) is None or is_non_negative(operand(node, 2))
        )
    return is_op(node, *KEEPS_SIGN_OF_ALL) and all(is_non_negative(x) for x in node.inputs)


def zero_padding(node: ir.Node) -> list[int] | None:
    """Return [top, left, bottom, right] of a spatial zero Pad, else None."""
    pads = constant(operand(node, 1))
    if not is_op(node, "Pad") or pads is None or len(pads) != 8 or operand(node, 3) is not None:
        return None
    mode = attribute(node, "mode", "constant")
    if mode != "constant" or (operand(node, 2) is not None and scalar(operand(node, 2)) != 0.0):
        return None
    spatial = [int(pads[i]) for i in (2, 3, 6, 7)]
    # Equal only without negative pads and without pads of batch or channels.
    return spatial if int(np.abs(pads).sum()) == sum(spatial) else None


@lowering_pass
def merge_padding(model: ir.Model) -> None:
    """Merge a Pad into the ``pads`` of its only reader."""
    for node in list(model.graph):
        extra, source = zero_padding(node), operand(node, 0)
        if extra is None or source is None:
            continue
        value = node.outputs[0]
        reader = only_consumer(value)
        between = []
        # Zero is zero in INT8, too, so that a pair between Pad and reader does not matter.
        while is_op(reader, "QuantizeLinear", "DequantizeLinear"):
            value = reader.outputs[0]
            between.append(value)
            reader = only_consumer(value)
        if reader is None or reader.inputs[0] is not value or not _absorb(reader, extra, source):
            continue
        replace(node.outputs[0], source)
        # The tensors between lose the border.
        for passed in between:
            passed.shape = source.shape
        model.graph.remove(node, safe=True)


def _absorb(node: ir.Node, extra: list[int], source: ir.Value) -> bool:
    """Add ``extra`` to the padding of a node, if exact; return the success."""
    if rank(source) != 4 or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    own, kernel = attribute(node, "pads", [0, 0, 0, 0]), attribute(node, "kernel_shape")
    pads = np.add(own, extra)
    if is_op(node, "MaxPool", "AveragePool"):
        # Runtimes reject pads as large as the kernel; ceil_mode may add windows.
        if attribute(node, "ceil_mode", 0) or np.any(pads >= np.tile(kernel, 2)):
            return False
        if is_op(node, "MaxPool") and not is_non_negative(source):
            return False
        if is_op(node, "AveragePool"):
            # One attribute covers both paddings: its own may not count while the merged one does.
            if any(own) and not attribute(node, "count_include_pad", 0):
                return False
            set_int(node, "count_include_pad", 1)
    elif not is_op(node, "Conv"):
        return False
    node.attributes.pop("auto_pad", None)
    set_ints(node, "pads", pads.tolist())
    return True
