"""The engine as predicted: its kernels, what each reads and writes, and the conversions between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from qat_lib.analysis.chains import Chain, extend_over_pool, grow_chains, per_tensor
from qat_lib.analysis.flow import Flow, Read, Scale
from qat_lib.analysis.propagation import is_mover, is_rectifier, keeps_grid, propagate
from qat_lib.analysis.residual import PlacedAdd, alone_end, place_adds
from qat_lib.analysis.weighted import WeightedOp, find_weighted
from qat_lib.onnx_view.graph import Node, OnnxGraph

KernelKind: TypeAlias = Literal[
    "weighted", "pool", "concat", "shape", "elementwise", "other", "reformat", "requantize"
]

AVERAGE_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean"})
MAX_POOLS = frozenset({"MaxPool", "GlobalMaxPool"})
#: Elementwise operators that have INT8 kernels when everything around them is INT8.
INT8_ELEMENTWISE = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Max",
        "Min",
        "Sum",
        "BatchNormalization",
        "LeakyRelu",
        "PRelu",
        "Clip",
    }
)
#: Operators that always compute in floating point.
FLOAT_ONLY = frozenset(
    {
        *(
            "Sigmoid",
            "HardSigmoid",
            "HardSwish",
            "Tanh",
            "Softmax",
            "LogSoftmax",
            "Gelu",
            "Elu",
            "Selu",
            "Celu",
            "Mish",
        ),
        *(
            "Softplus",
            "Softsign",
            "Erf",
            "Exp",
            "Log",
            "Sqrt",
            "Pow",
            "Reciprocal",
            "LayerNormalization",
        ),
        *("InstanceNormalization", "GroupNormalization", "LpNormalization", "LRN", "Sin", "Cos"),
    }
)
_POINTWISE = INT8_ELEMENTWISE | frozenset(
    {
        *(
            "Relu",
            "Sigmoid",
            "HardSigmoid",
            "HardSwish",
            "Tanh",
            "Gelu",
            "Elu",
            "Selu",
            "Celu",
            "Mish",
            "Softplus",
        ),
        *(
            "Softsign",
            "Erf",
            "Exp",
            "Log",
            "Sqrt",
            "Pow",
            "Reciprocal",
            "Neg",
            "Abs",
            "Cast",
            "Where",
            "Mean",
        ),
    }
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernel:
    """One predicted layer of the engine.

    Attributes:
        kind: ``"reformat"`` converts between INT8 and floating point or changes a layout,
            ``"requantize"`` changes a scale; the others compute.
        nodes: the ONNX nodes in it, in the order in which the engine's layer name has them.
        values: what it writes.
        reads, writes: ``"int8"`` or ``"float"``.
        reason: why it is there, for conversions.
    """

    kind: KernelKind
    nodes: tuple[Node, ...] = ()
    values: tuple[str, ...] = ()
    reads: Literal["int8", "float"]
    writes: Literal["int8", "float"]
    reason: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class PredictedEngine:
    """Everything that is predicted about a graph, for the rules to look at.

    Attributes:
        flow: the propagated flow.
        weighted, chains: weighted operators and their kernels, by node index.
        adds: the Adds of two activations.
        kernels: compute kernels in topological order, then conversions.
        written: scale in which a value is written, for those that are written as INT8.
        kernel_of: compute kernel by node index.
    """

    flow: Flow
    weighted: Mapping[int, WeightedOp]
    chains: Mapping[int, Chain]
    adds: tuple[PlacedAdd, ...]
    kernels: tuple[Kernel, ...]
    written: Mapping[str, Scale]
    kernel_of: Mapping[int, Kernel]

    @property
    def graph(self) -> OnnxGraph:
        """The ONNX graph."""
        return self.flow.graph

    def runs_int8(self, node: Node) -> bool:
        """Return whether the kernel of ``node`` computes in INT8."""
        kernel = self.kernel_of.get(node.index)
        return kernel is not None and kernel.reads == "int8"


def predict_engine(graph: OnnxGraph, *, allow_uint8: bool = False) -> PredictedEngine:
    """Predict the engine that TensorRT builds of ``graph``; see :func:`~qat_lib.analysis.analyze.analyze_onnx`."""
    flow = propagate(Flow.of(graph, allow_uint8=allow_uint8))
    weighted = find_weighted(flow)
    chains, adds = place_adds(flow, grow_chains(flow, weighted))
    chains = {index: extend_over_pool(flow, chain) for index, chain in chains.items()}
    kernels, written = _compute_kernels(flow, chains)
    kernel_of = {node.index: kernel for kernel in kernels for node in kernel.nodes}
    residuals = [
        placed.chain.residual for placed in adds if placed.rule == "F3" and placed.chain is not None
    ]
    conversions = _conversions(flow, kernel_of, written, {id(read) for read in residuals})
    return PredictedEngine(
        flow=flow,
        weighted=weighted,
        chains=chains,
        adds=tuple(adds),
        kernels=(*kernels, *conversions),
        written=written,
        kernel_of=kernel_of,
    )


def is_average_pool(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` averages over the image; the mean that a normalization subtracts does not."""
    if node.op != "ReduceMean":
        return node.op in AVERAGE_POOLS
    if any(
        reader.op == "Sub" and node.input(0) in reader.inputs
        for reader in graph.consumers(node.outputs[0])
    ):
        return False
    rank = len(graph.shape(node.input(0)) or ())
    given = graph.value(node.input(1)) if node.input(1) else node.integers("axes")
    axes = sorted(int(axis) % rank for axis in given) if given is not None and rank else []
    return rank >= 3 and axes in (list(range(1, rank - 1)), list(range(2, rank)))


def _compute_kernels(
    flow: Flow, chains: Mapping[int, Chain]
) -> tuple[list[Kernel], dict[str, Scale]]:
    fused = {node.index for chain in chains.values() for node in chain.nodes}
    kernels: list[Kernel] = []
    written: dict[str, Scale] = {}
    # Value -> position of the floating-point elementwise kernel that writes it.
    groups: dict[str, int] = {}
    followers: dict[int, list[Kernel]] = defaultdict(list)  # what joins the kernel at a position
    for node in flow.operators:
        if node.index in chains:
            kernel, scale = _weighted_kernel(flow, chains[node.index])
        elif node.index in fused:
            continue
        else:
            kernel, scale = _other_kernel(flow, node)
            fused.update(member.index for member in kernel.nodes)
        position = next(
            (groups[read.value] for read in flow.data_inputs(node) if _stays(flow, groups, read)),
            None,
        )
        if kernel.kind == "elementwise" and kernel.writes == "float" and kernel.reads == "float":
            if position is not None:
                followers[position].append(kernel)
            else:
                position = len(kernels)
                kernels.append(kernel)
            groups.update(dict.fromkeys(kernel.values, position))
        else:
            kernels.append(kernel)
        if scale is not None:
            written.update(dict.fromkeys(kernel.values, scale))
    for position, joined in followers.items():
        kernels[position] = _joined(kernels[position], joined)
    return kernels, written


def _stays(flow: Flow, groups: Mapping[str, int], read: Read) -> bool:
    return read.value in groups and read.scale is None and flow.only_reader(read.value) is read


def _joined(first: Kernel, followers: list[Kernel]) -> Kernel:
    nodes = tuple(node for kernel in (first, *followers) for node in kernel.nodes)
    return replace(first, nodes=nodes, values=followers[-1].values)


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
    graph, data = flow.graph, flow.data_inputs(node)
    nodes: tuple[Node, ...] = (node,)
    values = tuple(output for output in node.outputs if output)
    scales = {read.scale for read in data}
    quantized = bool(scales) and None not in scales
    scale: Scale | None = None
    source = flow.input(node, 0)
    given = source.scale if source is not None else None
    if is_mover(graph, node):
        kind: KernelKind = "pool" if node.op in MAX_POOLS else "shape"
        scale = given
    elif is_rectifier(graph, node):  # a kernel that computes can write another scale than it reads
        kind, scale = "elementwise", _rectified_scale(flow, node, given)
    elif node.op == "Concat":
        kind, scale = "concat", flow.common_scale(values[0]) if quantized else None
    elif is_average_pool(graph, node):
        kind, scale = "pool", flow.common_scale(values[0]) if quantized else None
    elif node.op in INT8_ELEMENTWISE:
        kind, end = "elementwise", alone_end(flow, node)
        if end not in node.outputs:
            nodes = (
                node,
                *(read.node for read in flow.readers(values[0]) if read.node is not None),
            )
            values = (end,)
        scale = flow.common_scale(end) if quantized else None
    else:
        kind = "elementwise" if node.op in _POINTWISE else "other"
    scale = per_tensor(scale)
    precision: Literal["int8", "float"] = "int8" if scale is not None else "float"
    return Kernel(kind=kind, nodes=nodes, values=values, reads=precision, writes=precision), scale


def _rectified_scale(flow: Flow, node: Node, given: Scale | None) -> Scale | None:
    if given is None:
        return None
    kept = given if keeps_grid(flow.graph, node, given) else None
    return flow.common_scale(node.outputs[0]) or kept


def _conversions(
    flow: Flow, kernel_of: Mapping[int, Kernel], written: Mapping[str, Scale], dequantized: set[int]
) -> Iterator[Kernel]:
    """Yield the kernels that do nothing but change a precision or a scale."""
    graph = flow.graph
    for value in flow.values:
        if graph.is_constant(value):
            continue
        given = written.get(value)
        arrives_int8 = graph.dtype(value) == "int8"  # behind an input or a Cast
        yield from _rescales(value, flow, written, kernel_of)
        seen: set[tuple[str, Scale]] = set()
        for read in flow.readers(value):
            if _is_inside(flow, kernel_of, read):
                continue
            for kind, scale, writes, reason in _steps(
                read, given, arrives_int8, kernel_of, id(read) in dequantized
            ):
                if (reason, scale) in seen:
                    continue
                seen.add((reason, scale))
                yield Kernel(
                    kind=kind,
                    values=(value,),
                    reads="float" if reason == "quantize" else "int8",
                    writes=writes,
                    reason=reason,
                    name=next((name for name in read.quantizers), value),
                )


def _is_inside(flow: Flow, kernel_of: Mapping[int, Kernel], read: Read) -> bool:
    """Return whether the kernel that reads a value is the one that computes it."""
    producer = flow.graph.producer(read.value)
    if producer is None or read.node is None:
        return False
    kernel = kernel_of.get(producer.index)
    return kernel is not None and kernel is kernel_of.get(read.node.index)


def _rescales(
    value: str, flow: Flow, written: Mapping[str, Scale], kernel_of: Mapping[int, Kernel]
) -> Iterator[Kernel]:
    """Yield the rescaling of a Concat's inputs to the scale that it writes."""
    for read in flow.readers(value):
        kernel = kernel_of.get(read.node.index) if read.node is not None else None
        if kernel is None or kernel.kind != "concat" or kernel.reads == "float":
            continue
        if read.scale != written.get(kernel.values[0]):
            yield Kernel(
                kind="requantize",
                values=(value,),
                reads="int8",
                writes="int8",
                reason="rescale",
                name=value,
            )


def _steps(
    read: Read,
    given: Scale | None,
    arrives_int8: bool,
    kernel_of: Mapping[int, Kernel],
    dequantized: bool,
) -> Iterator[tuple[KernelKind, Scale, Literal["int8", "float"], str]]:
    entry, scale = read.entry, read.scale
    if entry is None or scale is None:
        return
    if given is None and not arrives_int8:
        yield "reformat", entry, "int8", "quantize"
    elif given is not None and given != entry:
        yield "requantize", entry, "int8", "requantize"
    for _, following in zip(read.explicit, read.explicit[1:], strict=False):
        yield "requantize", following, "int8", "requantize"
    kernel = kernel_of.get(read.node.index) if read.node is not None else None
    if dequantized or kernel is None or kernel.reads == "float":
        yield "reformat", scale, "float", "dequantize"


def standalone(kernel: Kernel) -> bool:
    """Return whether a kernel only converts or passes over data that another kernel could have handled."""
    return kernel.kind in ("reformat", "requantize", "elementwise") or any(
        n.op == "Transpose" for n in kernel.nodes
    )
