"""Compute only what a strided 1x1 convolution reads: move its stride up to where the values are made.

A 1x1 convolution with stride 2 (ResNet v1's downsampling blocks) reads one value in four. When every reader of a tensor
does so, the tensor can be made at that size: the stride goes up through Q/DQ, activations and Adds into the convolution
that makes it. The values that remain are the same, bit for bit; a tenth of ResNet-50's multiplications goes away.

OpenVINO does this itself, but only for floats, and when it meets Q/DQ it leaves the layers around in floating point. So
the export does it for OpenVINO. TensorRT is given the network as it is.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import (
    attribute,
    constant,
    consumers,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    rank,
    replace,
    set_ints,
)

UNARY = (
    "QuantizeLinear",
    "DequantizeLinear",
    "Relu",
    "Clip",
    "LeakyRelu",
    "Sigmoid",
    "HardSwish",
    "BatchNormalization",
    "Identity",
)
BINARY = ("Add", "Sub", "Mul")


@lowering_pass
def pull_strides_up(model: ir.Model) -> None:
    """Move strides of 1x1 convolutions up until nothing changes."""
    graph = model.graph
    changed = True
    while changed:
        changed = False
        for node in reversed(list(graph)):
            value = node.outputs[0]
            stride = _common_stride(value)
            if node.graph is graph and stride is not None and _can_take(node):
                _release(graph, value)
                _take(node, stride)
                changed = True


def _common_stride(value: ir.Value) -> list[int] | None:
    """Return the stride with which every reader of ``value`` samples it; None when they differ or one needs all."""
    readers = consumers(value)
    strides = [_sampling_stride(node, value) for node in readers]
    if not readers or value.is_graph_output() or None in strides or rank(value) != 4:
        return None
    return strides[0] if all(stride == strides[0] for stride in strides) else None


def _sampling_stride(node: ir.Node, value: ir.Value) -> list[int] | None:
    """Return the stride of a 1x1 convolution or pool that reads only every n-th value, else None."""
    stride = attribute(node, "strides", [1, 1])
    plain = (
        is_op(node, "Conv", "MaxPool")
        and attribute(node, "kernel_shape") == [1, 1]
        and not any(attribute(node, "pads", [0]))
        and attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
        and not attribute(node, "ceil_mode", 0)
    )
    uses = sum(source is value for source in node.inputs)
    return stride if plain and max(stride) > 1 and uses == 1 and node.inputs[0] is value else None


def _can_take(node: ir.Node) -> bool:
    """Whether a node can make its output at the sampled size."""
    if is_op(node, "Conv"):
        return attribute(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if is_op(node, *UNARY):
        scale = constant(operand(node, 1)) if is_op(node, "QuantizeLinear", "DequantizeLinear") else None
        return (scale is None or scale.size == 1) and node.inputs[0] is not None and rank(node.inputs[0]) == 4
    if not is_op(node, *BINARY):
        return False
    full = [value for value in node.inputs if not _is_pointlike(value)]
    made = [value.producer() for value in full if value is not None]
    # Worth it only when a convolution in front takes the stride; the other operand then pays with a small pool.
    return bool(full) and any(n is not None and is_op(n, "Conv") and len(consumers(n.outputs[0])) == 1 for n in made)


def _is_pointlike(value: ir.Value | None) -> bool:
    """Whether an operand has the same value at all places, so that sampling leaves it as it is."""
    if value is None or value.shape is None or len(value.shape) < 3:
        return value is None or value.shape is not None
    return all(dim == 1 for dim in value.shape[-2:])


def _release(graph: ir.Graph, value: ir.Value) -> None:
    """Let the readers of ``value`` read all of it: convolutions lose their stride, pools go."""
    for node in consumers(value):
        if is_op(node, "MaxPool"):
            replace(node.outputs[0], value)
            graph.remove(node, safe=True)
        else:
            set_ints(node, "strides", [1, 1])


def _take(node: ir.Node, stride: list[int]) -> None:
    """Make the output of ``node`` at the sampled size."""
    output = node.outputs[0]
    output.shape = _sampled(output.shape, stride)
    if is_op(node, "Conv"):
        own = attribute(node, "strides", [1, 1])
        set_ints(node, "strides", [a * b for a, b in zip(own, stride, strict=True)])
        return
    for index, value in enumerate(node.inputs):
        if value is None or _is_pointlike(value) or (index > 0 and not is_op(node, *BINARY)):
            continue
        pool = new_node(
            "MaxPool",
            [value],
            {"kernel_shape": [1, 1], "strides": stride},
            origin=node,
            shape=_sampled(value.shape, stride),
            dtype=value.dtype,
        )
        node.replace_input_with(index, insert_before(node, pool))


def _sampled(shape: ir.Shape | None, stride: list[int]) -> ir.Shape | None:
    if shape is None:
        return None
    height, width = (
        -(-dim // step) if isinstance(dim, int) else None for dim, step in zip(shape[2:], stride, strict=True)
    )
    return ir.Shape([shape[0], shape[1], height, width])
