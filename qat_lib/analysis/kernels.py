"""Compute kernels with their operators, input precision and output precision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from qat_lib.analysis.chains import Chain, per_tensor
from qat_lib.analysis.flow import Flow
from qat_lib.analysis.operators import INT8_ELEMENTWISE, MAX_POOLS, POINTWISE, is_average_pool
from qat_lib.analysis.propagation import is_rectifier, keeps_grid
from qat_lib.analysis.reads import Scale, float_reads
from qat_lib.analysis.residual import alone_end
from qat_lib.onnx_view.graph import Node

KernelKind: TypeAlias = Literal[
    "weighted", "pool", "concat", "shape", "elementwise", "other", "reformat", "requantize"
]
KernelPrecision: TypeAlias = Literal["int8", "float"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """One predicted layer of the engine.

    Attributes:
        kind: ``"reformat"`` converts between INT8 and floating point or changes a layout,
            ``"requantize"`` changes a scale; the others compute.
        nodes: its ONNX nodes, in the order of the engine's layer name.
        values: its outputs.
        reads, writes: ``"int8"`` or ``"float"``.
        reason: cause of a conversion; empty for other kernels.
    """

    kind: KernelKind
    nodes: tuple[Node, ...] = ()
    values: tuple[str, ...] = ()
    reads: KernelPrecision
    writes: KernelPrecision
    reason: str = ""
    name: str = ""

    @property
    def transposes(self) -> bool:
        """Whether the kernel changes the layout."""
        return any(node.op == "Transpose" for node in self.nodes)


def standalone(kernel: Kernel) -> bool:
    """Return whether a kernel only converts, or could be absorbed by another."""
    return kernel.kind in ("reformat", "requantize", "elementwise") or kernel.transposes


def compute_kernels(
    flow: Flow, chains: Mapping[int, Chain]
) -> tuple[list[Kernel], dict[str, Scale]]:
    """Return the compute kernels, and each INT8 value's scale.

    Args:
        flow: the propagated flow.
        chains: kernels of the weighted operators, by node index.
    """
    fused = {node.index for chain in chains.values() for node in chain.nodes}
    kernels = _Kernels(flow)
    written: dict[str, Scale] = {}
    for node in flow.operators:
        if node.index in chains:
            kernel, scale = _weighted_kernel(flow, chains[node.index])
        # Part of a kernel that was added with its first node.
        elif node.index in fused:
            continue
        else:
            kernel, scale = _other_kernel(flow, node)
            fused.update(member.index for member in kernel.nodes)
        kernels.add(node, kernel)
        if scale is not None:
            written.update(dict.fromkeys(kernel.values, scale))
    return kernels.merged(), written


class _Kernels:
    """Kernels in topological order, with consecutive float elementwise kernels merged."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._kernels: list[Kernel] = []
        self._followers: dict[int, list[Kernel]] = defaultdict(list)  # by position of the first
        self._groups: dict[str, int] = {}  # value -> position of the elementwise kernel

    def add(self, node: Node, kernel: Kernel) -> None:
        """Add ``node``'s kernel, or append it to its operand's kernel."""
        if (kernel.kind, kernel.reads, kernel.writes) != ("elementwise", "float", "float"):
            self._kernels.append(kernel)
            return
        position = self._followed(node)
        if position is not None:
            self._followers[position].append(kernel)
        else:
            position = len(self._kernels)
            self._kernels.append(kernel)
        self._groups.update(dict.fromkeys(kernel.values, position))

    def _followed(self, node: Node) -> int | None:
        """Return the position of an elementwise kernel with ``node`` as its only reader."""
        for read in self._flow.data_inputs(node):
            is_only = self._flow.only_reader(read.value) is read
            if read.value in self._groups and read.scale is None and is_only:
                return self._groups[read.value]
        return None

    def merged(self) -> list[Kernel]:
        """Return the kernels, each merged with its followers."""
        merged = list(self._kernels)
        for position, followers in self._followers.items():
            first = merged[position]
            nodes = list(first.nodes)
            for kernel in followers:
                nodes.extend(kernel.nodes)
            # The merged kernel writes the values of its last member.
            merged[position] = replace(first, nodes=tuple(nodes), values=followers[-1].values)
        return merged


def _weighted_kernel(flow: Flow, chain: Chain) -> tuple[Kernel, Scale | None]:
    scale = chain.output_scale(flow)
    kernel = Kernel(
        kind="weighted",
        nodes=chain.nodes,
        values=(chain.end,),
        reads="int8" if chain.op.precision == "int8" else "float",
        writes="int8" if scale is not None else "float",
    )
    return kernel, scale


def _other_kernel(flow: Flow, node: Node) -> tuple[Kernel, Scale | None]:
    graph = flow.graph
    nodes: tuple[Node, ...] = (node,)
    values = tuple(filter(None, node.outputs))
    kind: KernelKind
    scale: Scale | None = None
    if graph.moves_values(node):
        kind = "pool" if node.op in MAX_POOLS else "shape"
        scale = _given_scale(flow, node)
    elif is_rectifier(graph, node):  # unlike a move, a rectifier can write a different scale
        kind, scale = "elementwise", _rectified_scale(flow, node)
    elif node.op == "Concat":
        kind, scale = "concat", _computed_scale(flow, node, values[0])
    elif is_average_pool(graph, node):
        kind, scale = "pool", _computed_scale(flow, node, values[0])
    elif node.op in INT8_ELEMENTWISE:
        end = alone_end(flow, node)
        if end not in node.outputs:
            readers = [read.node for read in flow.readers(values[0]) if read.node is not None]
            # The Relu behind the operator joins its kernel.
            nodes, values = (node, *readers), (end,)
        kind, scale = "elementwise", _computed_scale(flow, node, end)
    else:
        kind = "elementwise" if node.op in POINTWISE else "other"
    scale = per_tensor(scale)
    precision: KernelPrecision = "int8" if scale is not None else "float"
    return Kernel(kind=kind, nodes=nodes, values=values, reads=precision, writes=precision), scale


def _given_scale(flow: Flow, node: Node) -> Scale | None:
    source = flow.input(node, 0)
    return source.scale if source is not None else None


def _rectified_scale(flow: Flow, node: Node) -> Scale | None:
    given = _given_scale(flow, node)
    if given is None:
        return None
    kept = given if keeps_grid(flow.graph, node, given) else None
    return flow.common_scale(node.outputs[0]) or kept


def _computed_scale(flow: Flow, node: Node, value: str) -> Scale | None:
    """Return the output scale of ``node``; None unless all its reads are INT8."""
    reads = flow.data_inputs(node)
    return flow.common_scale(value) if reads and not float_reads(reads) else None
