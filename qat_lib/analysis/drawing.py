"""Drawing of the analyzed graph: operators as boxes, Q/DQ on edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.kernels import Kernel
from qat_lib.analysis.reads import Read
from qat_lib.onnx_view.graph import Node


@dataclass(frozen=True, kw_only=True)
class Box:
    """One operator, graph input or graph output.

    Attributes:
        name: name of the node or tensor.
        op: operator, ``"Input"`` or ``"Output"``.
        keras_layer: the corresponding Keras layer.
        precision: compute precision, ``"int8"``, ``"mixed"``, ``"float16"``, ``"float32"``...;
            empty for inputs and outputs.
        writes_float: whether the box ends an INT8 kernel with floating-point output.
        kernel: number of its predicted engine layer; -1 for inputs and outputs.
        shape: shape of the output, as text.
    """

    name: str
    op: str
    keras_layer: str
    precision: str
    writes_float: bool
    kernel: int
    shape: str


@dataclass(frozen=True, kw_only=True)
class Edge:
    """A tensor between two boxes.

    Attributes:
        source, target: positions in the drawing's boxes.
        scale: scale of the INT8 tensor; None in floating point.
        quantizer: Q or DQ node on this edge; empty if the precision was propagated.
    """

    source: int
    target: int
    scale: float | None
    quantizer: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Boxes in topological order, edges, and each node's box by name."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    anchors: dict[str, int]

    def box_of(self, finding: Finding) -> int:
        """Return the position of a finding's box, or -1."""
        return self.anchors.get(finding.node, self.anchors.get(finding.keras_layer, -1))


def draw(engine: PredictedEngine) -> Drawing:
    """Return the drawing of a predicted engine."""
    canvas = _Canvas()
    for name in engine.graph.inputs:
        canvas.add(_border(engine, name, "Input"), [name])
    numbers = {id(kernel): number for number, kernel in enumerate(engine.kernels)}
    for node in engine.flow.operators:
        box = _operator(engine, node, numbers[id(engine.kernel_of[node.index])])
        target = canvas.add(box, node.outputs)
        canvas.anchors.setdefault(box.keras_layer, target)
        for read in engine.flow.inputs(node):
            source = canvas.writer.get(read.value)
            # A quantizer of a weight has no source box; its findings point to the layer.
            anchor = target if source is None else source
            canvas.anchors.update(dict.fromkeys(read.quantizers, anchor))
            if source is not None:
                canvas.connect(source, target, read)
    # Reads without a node are graph outputs.
    ends = [read for read in engine.flow.reads if read.node is None]
    for read in sorted(ends, key=lambda read: read.position):
        source = canvas.writer.get(read.value)
        if source is not None:
            name = engine.graph.outputs[read.position]
            canvas.connect(source, canvas.add(_border(engine, name, "Output"), []), read)
    return Drawing(boxes=tuple(canvas.boxes), edges=tuple(canvas.edges), anchors=canvas.anchors)


class _Canvas:
    """Boxes and edges collected for a drawing."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.edges: list[Edge] = []
        self.anchors: dict[str, int] = {}
        self.writer: dict[str, int] = {}  # value -> box that writes it

    def add(self, box: Box, values: Iterable[str]) -> int:
        """Add a box that writes ``values`` and return its position."""
        position = len(self.boxes)
        self.boxes.append(box)
        self.writer.update(dict.fromkeys(values, position))
        self.anchors[box.name] = position
        return position

    def connect(self, source: int, target: int, read: Read) -> None:
        """Add the edge from the box ``source`` to its reader ``target``."""
        scale = read.scale.largest if read.scale is not None else None
        quantizer = read.quantizers[0] if read.quantizers else ""
        self.edges.append(Edge(source=source, target=target, scale=scale, quantizer=quantizer))


def _operator(engine: PredictedEngine, node: Node, number: int) -> Box:
    kernel = engine.kernel_of[node.index]
    is_end = kernel.nodes[-1] is node
    return Box(
        name=node.name,
        op=node.op,
        keras_layer=node.keras_layer,
        precision=_precision(engine, node, kernel),
        writes_float=is_end and kernel.reads == "int8" and kernel.writes == "float",
        kernel=number,
        shape=_shape(engine, node.outputs[0]),
    )


def _precision(engine: PredictedEngine, node: Node, kernel: Kernel) -> str:
    weighted = engine.weighted.get(node.index)
    if weighted is not None and weighted.precision == "mixed":
        return "mixed"
    if kernel.reads == "int8":
        return "int8"
    for member in kernel.nodes:
        dtype = engine.graph.dtype(member.outputs[0])
        if dtype:
            return dtype
    return "float32"


def _border(engine: PredictedEngine, name: str, op: str) -> Box:
    return Box(
        name=name,
        op=op,
        keras_layer=name,
        precision="",
        writes_float=False,
        kernel=-1,
        shape=_shape(engine, name),
    )


def _shape(engine: PredictedEngine, value: str) -> str:
    shape = engine.graph.shape(value)
    if shape is None:
        return "?"
    sizes = ["?" if dim is None else str(dim) for dim in shape]
    return " x ".join(sizes)
