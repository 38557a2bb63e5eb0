"""Where residual Adds run: in a convolution's kernel or alone, in INT8 or not (F1 to F6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from qat_lib.analysis.chains import Chain, extend_over_add, per_tensor
from qat_lib.analysis.flow import Flow, Read
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.roles import onnx_operators

AddRule: TypeAlias = Literal["F1", "F2", "F3", "F4", "F5", "F6"]

#: Types of indices and shapes, whose Adds are no residual Adds.
_RECTIFIERS = onnx_operators("rectifier")
_INTEGERS = frozenset({"int32", "int64", "uint32", "uint64", "int16", "uint16"})


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedAdd:
    """The verdict on one Add of two activations.

    Attributes:
        node: the Add.
        rule: the rule that decided.
        chain: kernel that the Add fused into, the Add included; None when it stands alone.
        branch: kernel whose output is one of the operands behind a Q (F4); None when there is none.
        int8: whether it reads and writes INT8.
    """

    node: Node
    rule: AddRule
    chain: Chain | None = None
    branch: Chain | None = None
    int8: bool


def place_adds(flow: Flow, chains: Mapping[int, Chain]) -> tuple[dict[int, Chain], list[PlacedAdd]]:
    """Decide each Add in topological order.

    Return the chains with the fused Adds in them, and the verdicts.
    """
    grown = dict(chains)
    base_ends = {chain.end: index for index, chain in chains.items()}
    placed: list[PlacedAdd] = []
    depth = _depths(flow)
    for node in flow.operators:
        if node.op != "Add":
            continue
        operands = flow.data_inputs(node)
        if len(operands) != 2 or flow.graph.dtype(node.outputs[0]) in _INTEGERS:
            continue
        verdict = _place(
            flow,
            node,
            operands,
            {end: grown[index] for end, index in _offers(base_ends, operands)},
            depth,
        )
        placed.append(verdict)
        if verdict.chain is not None:
            grown[verdict.chain.op.node.index] = verdict.chain
    return grown, placed


def _depths(flow: Flow) -> dict[int, int]:
    """Return the length of the longest way from a graph input to each operator, by node index."""
    depth: dict[int, int] = {}
    written: dict[str, int] = {}
    for node in flow.operators:
        depth[node.index] = 1 + max(
            (written.get(read.value, 0) for read in flow.inputs(node)), default=0
        )
        written.update(dict.fromkeys(node.outputs, depth[node.index]))
    return depth


def _offers(base_ends: Mapping[str, int], operands: tuple[Read, ...]) -> list[tuple[str, int]]:
    return [(read.value, base_ends[read.value]) for read in operands if read.value in base_ends]


def _place(
    flow: Flow,
    node: Node,
    operands: tuple[Read, ...],
    chains: Mapping[str, Chain],
    depth: Mapping[int, int],
) -> PlacedAdd:
    quantized = [read.scale is not None for read in operands]
    writes_int8 = per_tensor(flow.common_scale(alone_end(flow, node))) is not None
    if broadcasts(flow.graph, node, operands):
        return PlacedAdd(node=node, rule="F6", int8=all(quantized) and writes_int8)
    offers = [(chains[read.value], read) for read in operands if _is_offer(flow, chains, read)]
    if offers:
        # Two kernels could take the Add: engines give it to the convolution of the shortcut, the
        # one with fewer operators in front, in whatever order the file lists them.
        chain, operand = min(
            offers, key=lambda offer: (depth[offer[0].op.node.index], -offer[1].position)
        )
        residual = next(read for read in operands if read is not operand)
        extended = extend_over_add(flow, chain, node, residual)
        rule: AddRule = "F2" if residual.scale is None else "F1"
        if rule == "F1" and per_tensor(flow.common_scale(extended.end)) is None:
            rule = "F3"
        return PlacedAdd(
            node=node, rule=rule, chain=extended, int8=extended.output_scale(flow) is not None
        )
    branches = [chains[read.value] for read in operands if _is_behind_q(flow, chains, read)]
    branch = max(branches, key=lambda chain: depth[chain.op.node.index], default=None)
    if all(quantized) and branch is not None:
        return PlacedAdd(node=node, rule="F4", branch=branch, int8=writes_int8)
    return PlacedAdd(node=node, rule="F5", int8=all(quantized) and writes_int8)


def _is_offer(flow: Flow, chains: Mapping[str, Chain], read: Read) -> bool:
    return read.scale is None and read.value in chains and flow.only_reader(read.value) is read


def _is_behind_q(flow: Flow, chains: Mapping[str, Chain], read: Read) -> bool:
    return read.scale is not None and read.value in chains and flow.only_reader(read.value) is read


def alone_end(flow: Flow, node: Node) -> str:
    """Return what an elementwise kernel of ``node`` writes.

    It is the node's output, or that of the Relu behind it.
    """
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
    """Return whether the operands' shapes differ in more than the batch.

    Unknown dimensions count as equal.
    """
    first, second = (graph.shape(node.inputs[read.position]) for read in operands)
    if first is None or second is None:
        return False
    if len(first) != len(second):
        return True
    return any(
        a != b
        for a, b in zip(first[1:], second[1:], strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )
