"""Placement and precision of residual Adds (F1 to F6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from qat_lib.analysis.chains import Chain, extend_over_add, per_tensor
from qat_lib.analysis.flow import Flow
from qat_lib.analysis.reads import Read, float_reads
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.shapes import sizes_differ

AddRule: TypeAlias = Literal["F1", "F2", "F3", "F4", "F5", "F6"]

_RECTIFIERS = onnx_operators("rectifier")
#: Types of indices and shapes. Their Adds are not residual Adds.
_INTEGERS = frozenset({"int32", "int64", "uint32", "uint64", "int16", "uint16"})


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedAdd:
    """The verdict on one Add of two activations.

    Attributes:
        node: the Add.
        rule: the applied rule.
        chain: kernel of the fused Add, the Add included; None for a separate kernel.
        branch: kernel with one of the quantized operands as its output (F4), if any.
        int8: whether the Add reads and writes INT8.
    """

    node: Node
    rule: AddRule
    chain: Chain | None = None
    branch: Chain | None = None
    int8: bool


def place_adds(flow: Flow, chains: Mapping[int, Chain]) -> tuple[dict[int, Chain], list[PlacedAdd]]:
    """Return the chains with the fused Adds, and the verdicts on the Adds in topological order."""
    grown = dict(chains)
    # An Add fuses at the end of the unextended chain, so a kernel can take one Add only.
    base_ends = {chain.end: index for index, chain in chains.items()}
    placed: list[PlacedAdd] = []
    depth = _depths(flow)
    for node in flow.operators:
        if node.op != "Add":
            continue
        operands = flow.data_inputs(node)
        if len(operands) != 2 or flow.graph.dtype(node.outputs[0]) in _INTEGERS:
            continue
        ends = {}
        for read in operands:
            if read.value in base_ends:
                ends[read.value] = grown[base_ends[read.value]]
        verdict = _place(flow, node, operands, ends, depth)
        placed.append(verdict)
        if verdict.chain is not None:
            grown[verdict.chain.op.node.index] = verdict.chain
    return grown, placed


def _depths(flow: Flow) -> dict[int, int]:
    """Return the longest distance of each operator from a graph input, by node index."""
    depth: dict[int, int] = {}
    written: dict[str, int] = {}
    for node in flow.operators:
        before = [written.get(read.value, 0) for read in flow.inputs(node)]
        depth[node.index] = 1 + max(before, default=0)
        written.update(dict.fromkeys(node.outputs, depth[node.index]))
    return depth


def _place(
    flow: Flow,
    node: Node,
    operands: tuple[Read, ...],
    chains: Mapping[str, Chain],
    depth: Mapping[int, int],
) -> PlacedAdd:
    quantized = not float_reads(operands)
    writes_int8 = per_tensor(flow.common_scale(alone_end(flow, node))) is not None
    if broadcasts(flow.graph, node, operands):
        return PlacedAdd(node=node, rule="F6", int8=quantized and writes_int8)
    alone = [read for read in operands if _ends_chain(flow, chains, read)]
    offers = float_reads(alone)
    if offers:
        # If two kernels could take the Add, engines fuse it into the convolution of the shortcut,
        # the one with fewer operators in front, regardless of the order in the file.
        operand = min(
            offers, key=lambda read: (depth[chains[read.value].op.node.index], -read.position)
        )
        residual = operands[1] if operand is operands[0] else operands[0]
        extended = extend_over_add(flow, chains[operand.value], node, residual)
        # F2: float residual; F1: INT8 residual and output; F3: INT8 residual, float output.
        rule: AddRule = "F2"
        if residual.scale is not None:
            rule = "F1" if per_tensor(flow.common_scale(extended.end)) is not None else "F3"
        return PlacedAdd(
            node=node, rule=rule, chain=extended, int8=extended.output_scale(flow) is not None
        )
    branches = [chains[read.value] for read in alone]
    branch = max(branches, key=lambda chain: depth[chain.op.node.index], default=None)
    # F4: a Q on the branch separates the Add from its kernel.
    if quantized and branch is not None:
        return PlacedAdd(node=node, rule="F4", branch=branch, int8=writes_int8)
    return PlacedAdd(node=node, rule="F5", int8=quantized and writes_int8)


def _ends_chain(flow: Flow, chains: Mapping[str, Chain], read: Read) -> bool:
    """Return whether this is the only read of a weighted kernel's output."""
    return read.value in chains and flow.only_reader(read.value) is read


def alone_end(flow: Flow, node: Node) -> str:
    """Return the output of an elementwise kernel: that of ``node``, or of the Relu behind it."""
    read = flow.only_reader(node.outputs[0])
    if (
        read is not None
        and read.node is not None
        and read.scale is None
        and read.node.op in _RECTIFIERS
    ):
        return read.node.outputs[0]
    return node.outputs[0]


def broadcasts(graph: OnnxGraph, node: Node, operands: tuple[Read, ...]) -> bool:
    """Return whether the operands' shapes differ beyond the batch; unknown sizes are equal."""
    first = graph.shape(node.inputs[operands[0].position])
    second = graph.shape(node.inputs[operands[1].position])
    if first is None or second is None:
        return False
    if len(first) != len(second):
        return True
    return sizes_differ(first[1:], second[1:])
