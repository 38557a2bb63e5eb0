"""Extent of weighted kernels: the bias, normalization and activation fused in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import filterfalse

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.reads import Read, Scale, float_reads
from qat_lib.analysis.weighted import WeightedOp
from qat_lib.graph.roles import ARITHMETIC, onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.support.mappings import map_values

ACTIVATIONS = onnx_operators("epilogue")
_AFTER_ADD = onnx_operators("after add")
#: Operators allowed between x and the Mul in x * gate(x): SiLU, hard swish, Mish and the erf form
#: of GELU.
_GATES = onnx_operators("gate")
_LONGEST_GATE = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """One kernel around a weighted operator.

    Attributes:
        op: the weighted operator.
        nodes: all nodes of the kernel, the operator first.
        end: output value of the kernel.
        add: the fused residual Add, if any.
        residual: the other operand of the Add.
    """

    op: WeightedOp
    nodes: tuple[Node, ...]
    end: str
    add: Node | None = None
    residual: Read | None = None

    def output_scale(self, flow: Flow) -> Scale | None:
        """Return the scale of the kernel's INT8 output; None for floating-point output."""
        if self.op.precision != "int8":
            return None
        if self.residual is not None and self.residual.scale is None:
            return None
        # One kernel writes its output once, so all readers need the same scale.
        return per_tensor(flow.common_scale(self.end))


def per_tensor(scale: Scale | None) -> Scale | None:
    """Return ``scale`` if it is per tensor, as required for the output of a kernel."""
    return scale if scale is not None and scale.count == 1 else None


def grow_chains(flow: Flow, weighted: Mapping[int, WeightedOp]) -> dict[int, Chain]:
    """Return the kernel of each weighted operator up to a residual Add, by node index."""
    return map_values(partial(_grow, flow), weighted)


def extend_over_add(flow: Flow, chain: Chain, add: Node, residual: Read) -> Chain:
    """Return ``chain`` with a residual Add and the activation behind it."""
    nodes, end = (*chain.nodes, add), add.outputs[0]
    activation = _single_float_reader(flow, end)
    if activation is not None and activation.op in _AFTER_ADD:
        nodes, end = (*nodes, activation), activation.outputs[0]
    return replace(chain, nodes=nodes, end=end, add=add, residual=residual)


def extend_over_pool(flow: Flow, chain: Chain) -> Chain:
    """Return ``chain`` with the next MaxPool, if they form one INT8 kernel.

    Engines fuse Convolution + Activation + Pool if the convolution has no other reader and all
    readers of the pool quantize it with one scale.
    """
    read = flow.only_reader(chain.end)
    pool = read.node if read is not None and not read.explicit else None
    if pool is None or pool.op != "MaxPool" or chain.op.node.op != "Conv" or chain.add is not None:
        return chain
    if any(pool.outputs[1:]):  # a pool with indices is another kernel
        return chain
    # Without a common scale behind the pool, the kernel would write floating point.
    pooled = replace(chain, nodes=(*chain.nodes, pool), end=pool.outputs[0])
    return pooled if pooled.output_scale(flow) is not None else chain


def _grow(flow: Flow, op: WeightedOp) -> Chain:
    nodes, end = [op.node], op.node.outputs[0]
    for step in _steps(flow, op, end):
        nodes.extend(step)
        end = step[-1].outputs[0]
    return Chain(op=op, nodes=tuple(nodes), end=end)


def _steps(flow: Flow, op: WeightedOp, end: str) -> Iterator[tuple[Node, ...]]:
    """Yield the groups of nodes fused into the kernel, in order."""
    while True:
        node = _single_float_reader(flow, end)
        if node is not None and joins(flow.graph, node):
            step: tuple[Node, ...] = (node,)
        elif not op.depthwise:  # a depthwise kernel takes no x * gate(x) (NVIDIA/TensorRT#3205)
            step = match_gate(flow, end)
        else:
            step = ()
        if not step:
            return
        yield step
        end = step[-1].outputs[0]


def _single_float_reader(flow: Flow, value: str) -> Node | None:
    read = flow.only_reader(value)
    return read.node if read is not None and read.scale is None else None


def joins(graph: OnnxGraph, node: Node) -> bool:
    """Return whether a kernel can take ``node`` as part of its epilogue."""
    if node.op in ACTIVATIONS:
        return True
    if node.op == "BatchNormalization":
        return all(map(graph.is_constant, node.inputs[1:]))
    return node.op in ARITHMETIC and _is_affine(graph, node)


def _is_affine(graph: OnnxGraph, node: Node) -> bool:
    """Return whether a node is a scale or bias: constant operand, unchanged shape."""
    data = list(filterfalse(graph.is_constant, node.inputs))
    if len(data) != 1 or len(node.inputs) != 2:
        return False
    # A constant of higher rank broadcasts the activation, which an epilogue can't do.
    before, after = graph.shape(data.pop()), graph.shape(node.outputs[0])
    return before is None or after is None or len(before) == len(after)


def match_gate(flow: Flow, value: str) -> tuple[Node, ...]:
    """Return the nodes of ``value * gate(value)``, or an empty tuple.

    ``value`` must not have other readers. Both factors may be functions of ``value``, as in
    ``(0.5 * x) * (1 + erf(x / sqrt(2)))``.
    """
    reads = flow.readers(value)
    return gate_of(flow, reads) if len(float_reads(reads)) == len(reads) else ()


def gate_of(flow: Flow, reads: Sequence[Read]) -> tuple[Node, ...]:
    """Return the nodes of ``x * gate(x)`` from ``reads``, all reads of x; empty without a gate."""
    if len(reads) != 2:
        return ()
    first, second = (_walk_gate(flow, read.node) for read in reads)
    # At least one branch has more than the Mul, otherwise this is x * x.
    if first and second and first[-1] is second[-1] and (len(first) > 1 or len(second) > 1):
        return (*first[:-1], *second[:-1], first[-1])
    return ()


def _walk_gate(flow: Flow, node: Node | None) -> tuple[Node, ...]:
    """Return the nodes from ``node`` to a product of two activations; empty without one."""
    found: list[Node] = []
    while node is not None and len(found) < _LONGEST_GATE:
        found.append(node)
        # The product closes the gate; a product with a constant is a scale on the way.
        if node.op == "Mul" and not _is_affine(flow.graph, node):
            return tuple(found)
        if node.op not in _GATES or (node.op in ARITHMETIC and not _is_affine(flow.graph, node)):
            return ()
        node = _single_float_reader(flow, node.outputs[0])
    return ()
