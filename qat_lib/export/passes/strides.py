"""Compute only the inputs of a strided 1x1 convolution: hoist its stride.

A 1x1 convolution with stride 2 (ResNet v1's downsampling blocks) reads one value in four. If every
reader of a tensor does so, the tensor can be computed at that size: the stride moves up through
Q/DQ, activations and Adds into the convolution that computes the tensor. The remaining values are
equal bit for bit; ResNet-50 saves a tenth of its multiplications.

OpenVINO does this only for floats, and with Q/DQ it leaves the surrounding layers in floating
point. The export therefore does it for OpenVINO. TensorRT gets the unchanged network.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    attribute,
    consumers,
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    producer,
    rank,
    replace,
    set_ints,
)
from qat_lib.export.passes.transposes import has_many_scales
from qat_lib.graph.roles import PAIR, onnx_operators

UNARY = (
    PAIR | onnx_operators("after add") | {"Sigmoid", "HardSwish", "BatchNormalization", "Identity"}
)
BINARY = ("Add", "Sub", "Mul")


@lowering_pass
def hoist_strides(model: ir.Model) -> None:
    """Move strides of 1x1 convolutions up as far as possible."""
    graph = model.graph
    # Backwards: the pools that a move inserts are readers of the tensors in front, visited later.
    for node in reversed(list(graph)):
        value = node.outputs[0]
        stride = _common_stride(value)
        if stride is not None and _can_take(node):
            # The readers lose their strides before the node gets its own, so the output shapes do
            # not change.
            _release(graph, value)
            _take(node, stride)


def _common_stride(value: ir.Value) -> list[int] | None:
    """Return the stride common to all readers of ``value``, else None."""
    strides = [_sampling_stride(node, value) for node in consumers(value)]
    if value.is_graph_output() or rank(value) != 4 or not strides:
        return None
    return strides[0] if all(stride == strides[0] for stride in strides) else None


def _sampling_stride(node: ir.Node, value: ir.Value) -> list[int] | None:
    """Return the stride of a subsampling 1x1 convolution or pool, else None."""
    stride = attribute(node, "strides", [1, 1])
    plain = (
        is_op(node, "Conv", "MaxPool")
        and len(node.outputs) == 1
        and attribute(node, "kernel_shape") == [1, 1]
        and not any(attribute(node, "pads", [0]))
        and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and not attribute(node, "ceil_mode", 0)
    )
    return stride if plain and max(stride) > 1 and node.inputs[0] is value else None


def _can_take(node: ir.Node) -> bool:
    """Return whether a node can compute its output at the sampled size."""
    if is_op(node, "Conv"):
        return attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if is_op(node, *UNARY):
        return not has_many_scales(node) and rank(node.inputs[0]) == 4
    # Gates and constants of size 1 x 1 need no sampling.
    full = [value for value in node.inputs if not _is_pointlike(value)]
    if not is_op(node, *BINARY) or any(rank(value) != 4 for value in full):
        return False
    made = [producer(value) for value in full]
    # Profitable only if a convolution in front takes the stride; the other operand gets a small
    # pool.
    return any(is_op(each, "Conv") and only_consumer(each.outputs[0]) is node for each in made)


def _is_pointlike(value: ir.Value | None) -> bool:
    """Return whether an operand is constant over space and unaffected by sampling."""
    shape = dims(value)
    return shape is not None and all(size == 1 for size in shape[-2:])


def _release(graph: ir.Graph, value: ir.Value) -> None:
    """Remove the sampling from the readers of ``value``: strides of convolutions, and pools."""
    for node in consumers(value):
        if is_op(node, "MaxPool"):
            replace(node.outputs[0], value)
            graph.remove(node, safe=True)
        else:
            set_ints(node, "strides", [1, 1])


def _take(node: ir.Node, stride: list[int]) -> None:
    """Compute the output of ``node`` at the sampled size."""
    node.outputs[0].shape = _sampled(node.outputs[0], stride)
    if is_op(node, "Conv"):
        set_ints(node, "strides", np.multiply(attribute(node, "strides", [1, 1]), stride).tolist())
        return
    for index, value in enumerate(node.inputs if is_op(node, *BINARY) else node.inputs[:1]):
        if value is None or _is_pointlike(value):
            continue
        # A 1x1 max pool copies every n-th element.
        pool = new_node(
            "MaxPool",
            [value],
            {"kernel_shape": [1, 1], "strides": stride},
            origin=node,
            shape=_sampled(value, stride),
            dtype=value.dtype,
        )
        node.replace_input_with(index, insert_before(node, pool))


def _sampled(value: ir.Value, stride: list[int]) -> ir.Shape:
    """Return the shape after sampling with a stride."""
    shape = list(value.shape or [])
    image = [
        -(-size // stride[i]) if isinstance(size, int) else None for i, size in enumerate(shape[2:])
    ]
    return ir.Shape([*shape[:2], *image])
