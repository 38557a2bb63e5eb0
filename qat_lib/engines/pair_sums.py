"""Sums of two products in 16 bits, on x86 CPUs without VNNI and AMX.

INT8 kernels of these CPUs multiply bytes with ``vpmaddubsw``. The instruction adds the products of
two neighbouring input channels in 16 bits and saturates. Activations reach 255 (kernels shift
signed ones by 128), so a pair of weights with the sum 129 can overflow: 129 * 255 > 32767.
Neighbours are channels 0 and 1, 2 and 3, and so on, at one position of the kernel; a depthwise
convolution does not add channels. ``ONEDNN_MAX_CPU_ISA=AVX2`` has the same effect on other CPUs.
Source: oneDNN, "Nuances of int8 Computations"; measured with OpenVINO 2026.4 for convolutions of
one to three dimensions, dilated, grouped and transposed convolutions, and matrix products. ONNX
Runtime's kernels saturate as well, but have a slower form with 32-bit sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from qat_lib.engines.values import Array
from qat_lib.graph.roles import onnx_operators

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node, OnnxGraph

LARGEST_SUM = 128
"""Largest sum of two weights of equal sign without a possible overflow."""

# Operators that OpenVINO runs on quantized activations in front of a kernel.
_CARRYING = (
    onnx_operators("layout")
    | onnx_operators("activation")
    | {"MaxPool", "AveragePool", "GlobalAveragePool", "Pad", "Resize", "Clip", "Identity"}
    | {"Slice", "Split", "Concat"}
)


def overflowing_nodes(graph: OnnxGraph, *, in_window: bool = False) -> Iterator[Node]:
    """Yield the nodes with INT8 weights and activations and pair sums that can exceed 16 bits.

    Args:
        graph: the graph.
        in_window: whether the neighbour of a convolution's last channel is the first channel of the
            next position, as in ONNX Runtime's matrix products (measured with 1.31).
    """
    for node in graph.nodes:
        weights = paired_weights(graph, node, in_window=in_window)
        if weights is None or not _reads_integers(graph, node.input(0)):
            continue
        if largest_sum(weights) > LARGEST_SUM:
            yield node


def paired_weights(graph: OnnxGraph, node: Node, *, in_window: bool = False) -> Array | None:
    """Return the INT8 weights of a node as ``(..., channels)``, with neighbours on the last axis.

    None for nodes without INT8 weights or without sums over channels. ``in_window``: see
    ``overflowing_nodes``.
    """
    source = graph.producer(node.input(1)) if node.op in _LAYOUTS else None
    if source is None or source.op != "DequantizeLinear":
        return None
    integers = graph.weights(source.input(0))
    if integers is None or integers.dtype != np.int8 or integers.ndim < 2:
        return None
    if in_window and node.op == "Conv":
        is_depthwise = integers.shape[1] == 1 and len(integers) == node.attributes.get("group", 1)
        return None if is_depthwise else np.moveaxis(integers, 1, -1).reshape(len(integers), -1)
    return _LAYOUTS[node.op](node, integers)


def largest_sum(weights: Array) -> int:
    """Return the largest magnitude of a sum over neighbours of equal sign.

    Args:
        weights: integers ``(..., channels)``, with an even or odd number of channels.
    """
    # int16: sums of two int8 weights exceed int8.
    padded = np.zeros((*weights.shape[:-1], weights.shape[-1] + weights.shape[-1] % 2), np.int16)
    padded[..., : weights.shape[-1]] = weights
    even, odd = padded[..., ::2], padded[..., 1::2]
    # Products of opposite sign can't overflow together: only equal signs add up.
    positive = np.maximum(even, 0) + np.maximum(odd, 0)
    negative = np.minimum(even, 0) + np.minimum(odd, 0)
    return int(max(positive.max(initial=0), -negative.min(initial=0)))


def _convolution(node: Node, integers: Array) -> Array | None:
    channels = integers.shape[1]  # of (outputs, channels of a group, *window)
    last = np.moveaxis(integers, 1, -1)
    if channels == 1:
        return None
    if node.attributes.get("group", 1) > 1 and channels % 2:
        # Computed as a matrix product over the whole window, so that the neighbour of a channel
        # may belong to the next position.
        return last.reshape(len(last), -1)
    return last


def _transposed(node: Node, integers: Array) -> Array | None:
    groups = node.attributes.get("group", 1)
    channels = len(integers) // groups  # of (channels, outputs of a group, *window)
    if channels == 1:
        return None
    split = integers.reshape(groups, channels, *integers.shape[1:])
    return np.moveaxis(split, 1, -1)


def _product(_node: Node, integers: Array) -> Array:
    return np.moveaxis(integers, -2, -1)


def _gemm(node: Node, integers: Array) -> Array:
    return integers if node.attributes.get("transB", 0) else integers.T


_LAYOUTS = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MatMul": _product,
    "Gemm": _gemm,
}


def _reads_integers(graph: OnnxGraph, tensor: str) -> bool:
    """Return whether a tensor comes from a DQ, directly or through integer-preserving operators."""
    pending, seen = [tensor], set[str]()
    while pending:
        name = pending.pop()
        producer = graph.producer(name)
        if name in seen or producer is None:
            continue
        seen.add(name)
        if producer.op == "DequantizeLinear":
            return True
        if producer.op in _CARRYING:
            pending.extend(producer.inputs)
    return False
