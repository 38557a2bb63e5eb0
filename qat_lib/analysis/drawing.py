"""Drawing of the predicted engine: one box per kernel, Q/DQ on edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.kernels import Kernel
from qat_lib.analysis.reads import Read
from qat_lib.onnx_view.graph import Node
from qat_lib.pages.graph import GraphEdge, GraphNode, GraphView, Pair
from qat_lib.pages.numbers import percent


def draw(engine: PredictedEngine) -> GraphView:
    """Return the drawing of a predicted engine."""
    canvas = _Canvas()
    macs = sum(op.macs for op in engine.weighted.values())
    for name in engine.graph.inputs:
        canvas.add(_border(engine, name, "Input"), [name])
    order = {node.index: place for place, node in enumerate(engine.flow.operators)}
    members = {id(kernel): kernel for kernel in engine.kernel_of.values()}
    # Only the last node of a kernel has readers outside of it: sorted by that node, the kernels
    # are in topological order.
    for kernel in sorted(members.values(), key=lambda each: order[_last(each, order).index]):
        nodes = sorted(kernel.nodes, key=lambda node: order[node.index])
        target = canvas.add(
            _box(engine, kernel, nodes, macs), [value for node in nodes for value in node.outputs]
        )
        for node in nodes:
            canvas.anchors[node.name] = target
            canvas.anchors.setdefault(node.keras_layer, target)
            for read in engine.flow.inputs(node):
                canvas.connect(read, target)
    # Reads without a node are graph outputs.
    ends = [read for read in engine.flow.reads if read.node is None]
    for read in sorted(ends, key=lambda read: read.position):
        if read.value in canvas.writer:
            name = engine.graph.outputs[read.position]
            canvas.connect(read, canvas.add(_border(engine, name, "Output"), []))
    return GraphView(nodes=tuple(canvas.nodes), edges=tuple(canvas.edges), anchors=canvas.anchors)


class _Canvas:
    """Boxes and edges collected for a drawing."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.edges: dict[GraphEdge, None] = {}  # without duplicates, in order
        self.anchors: dict[str, int] = {}
        self.writer: dict[str, int] = {}  # value -> box that writes it

    def add(self, node: GraphNode, values: Iterable[str]) -> int:
        """Add a box that writes ``values`` and return its position."""
        position = len(self.nodes)
        self.nodes.append(node)
        self.writer.update(dict.fromkeys(values, position))
        self.anchors.setdefault(node.title, position)
        return position

    def connect(self, read: Read, target: int) -> None:
        """Add the edge of a read by the box ``target``, and its Q/DQ pair."""
        source = self.writer.get(read.value)
        # A quantizer of a weight has no source box; its findings point to the layer.
        self.anchors.update(dict.fromkeys(read.quantizers, target if source is None else source))
        if source is None or source == target:
            return
        edge = GraphEdge(source=source, target=target, quantized=read.scale is not None)
        self.edges[edge] = None
        if read.quantizers and self.nodes[source].output is None:
            self.nodes[source] = replace(self.nodes[source], output=_pair(read))


def _last(kernel: Kernel, order: dict[int, int]) -> Node:
    return max(kernel.nodes, key=lambda node: order[node.index])


def _pair(read: Read) -> Pair:
    scale = read.entry
    if scale is None or not scale.is_int8:
        return Pair(name=read.quantizers[0], amax=None)
    unsigned = scale.key[2] == "uint8"
    amax = scale.largest * (255 if unsigned else 127)
    return Pair(name=read.quantizers[0], amax=amax, unsigned=unsigned)


def _box(engine: PredictedEngine, kernel: Kernel, nodes: list[Node], macs: int) -> GraphNode:
    weighted = next((engine.weighted[n.index] for n in nodes if n.index in engine.weighted), None)
    main = nodes[0] if weighted is None else weighted.node
    weight = None if weighted is None else weighted.weight
    scale = None if weight is None else weight.scale
    details = [
        "INT8" if kernel.reads == "int8" else _float_type(engine, nodes),
        f"output: {_shape(engine, nodes[-1].outputs[0])}",
        f"kernel: {' + '.join(node.name for node in nodes)}",
    ]
    if kernel.reads == "int8" and kernel.writes == "float":
        details[0] += ", writes floating point"
    if weighted is not None and weighted.precision == "mixed":
        details[0] += ": one operand is not quantized"
    if weighted is not None and weighted.macs:
        details.append(f"multiply-accumulates: {percent(weighted.macs / macs, 1)}")
    if scale is not None:
        details.append(f"weight: INT8, {scale.count} range{'s' if scale.count > 1 else ''}")
    moves = kernel.kind == "shape"
    return GraphNode(
        title=main.keras_layer or main.name,
        kind=" + ".join(map(_operation, nodes)),
        precision="" if moves else "int8" if kernel.reads == "int8" else "float",
        int8_weight=scale is not None,
        names=tuple(node.name for node in nodes),
        details=tuple(details),
    )


def _operation(node: Node) -> str:
    """Return an operation with the attributes that shape it, such as ``Conv 3×3 /2``."""
    words = [node.op]
    if kernel := node.integers("kernel_shape"):
        words.append("×".join(map(str, kernel)))
    strides = node.integers("strides") or ()
    if any(step != 1 for step in strides):
        words.append("/" + "×".join(map(str, strides[:1] if len(set(strides)) == 1 else strides)))
    if (group := node.integer("group") or 1) > 1:
        words.append(f"groups {group}")
    return " ".join(words)


def _float_type(engine: PredictedEngine, nodes: Iterable[Node]) -> str:
    known = (engine.graph.dtype(node.outputs[0]) for node in nodes)
    return next(filter(None, known), None) or "float32"


def _border(engine: PredictedEngine, name: str, kind: str) -> GraphNode:
    return GraphNode(title=name, kind=kind, details=(f"shape: {_shape(engine, name)}",))


def _shape(engine: PredictedEngine, value: str) -> str:
    shape = engine.graph.shape(value)
    if shape is None:
        return "?"
    return " × ".join("?" if dim is None else str(dim) for dim in shape)
