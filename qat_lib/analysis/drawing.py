"""The analyzed graph as something to draw: operators as boxes, Q/DQ on the edges between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding


@dataclass(frozen=True, kw_only=True)
class Box:
    """One operator, graph input or graph output.

    Attributes:
        name: name of the node or tensor.
        op: operator, ``"Input"`` or ``"Output"``.
        keras_layer: the Keras layer that it stands for.
        precision: ``"int8"``, ``"mixed"``, ``"float16"``, ``"float32"``... that it computes in;
            empty for inputs and outputs.
        writes_float: whether it is the end of an INT8 kernel that writes floating point.
        kernel: number of the predicted engine layer that it is in; -1 for inputs and outputs.
        shape: shape of what it writes, as text.
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
    """A tensor on its way from one box to another.

    Attributes:
        source, target: positions in the drawing's boxes.
        scale: scale in which it travels as INT8; None in floating point.
        quantizer: Q or DQ node written on this edge; empty when the precision came from a
            neighbour.
    """

    source: int
    target: int
    scale: float | None
    quantizer: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Boxes in topological order, edges, and the box of each node by name."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    anchors: dict[str, int]

    def box_of(self, finding: Finding) -> int:
        """Return the position of the box that a finding is about, -1 when there is none."""
        return self.anchors.get(finding.node, self.anchors.get(finding.keras_layer, -1))


def draw(engine: PredictedEngine) -> Drawing:
    """Return the drawing of a predicted engine."""
    boxes: list[Box] = []
    place: dict[str, int] = {}  # value -> box that writes it
    anchors: dict[str, int] = {}
    numbers = {id(kernel): number for number, kernel in enumerate(engine.kernels)}

    def add(box: Box, values: Iterable[str]) -> int:
        place.update(dict.fromkeys(values, len(boxes)))
        anchors[box.name] = len(boxes)
        boxes.append(box)
        return len(boxes) - 1

    for name in engine.graph.inputs:
        add(_border(engine, name, "Input"), [name])
    edges: list[Edge] = []
    for node in engine.flow.operators:
        kernel = engine.kernel_of[node.index]
        op = engine.weighted.get(node.index)
        box = Box(
            name=node.name,
            op=node.op,
            keras_layer=node.keras_layer,
            precision="mixed"
            if op is not None and op.precision == "mixed"
            else _precision(engine, node.index),
            writes_float=kernel.reads == "int8"
            and kernel.writes == "float"
            and kernel.nodes[-1] is node,
            kernel=numbers[id(kernel)],
            shape=_shape(engine, node.outputs[0]),
        )
        target = add(box, node.outputs)
        anchors.setdefault(box.keras_layer, target)
        for read in engine.flow.inputs(node):
            source = place.get(read.value)
            anchors.update((name, target if source is None else source) for name in read.quantizers)
            if source is not None:
                quantizer = read.quantizers[0] if read.quantizers else ""
                scale = read.scale.largest if read.scale is not None else None
                edges.append(Edge(source=source, target=target, scale=scale, quantizer=quantizer))
    ends = sorted((r for r in engine.flow.reads if r.node is None), key=lambda read: read.position)
    for read in ends:
        if read.value in place:
            target = add(_border(engine, engine.graph.outputs[read.position], "Output"), [])
            scale = read.scale.largest if read.scale is not None else None
            quantizer = read.quantizers[0] if read.quantizers else ""
            edges.append(
                Edge(source=place[read.value], target=target, scale=scale, quantizer=quantizer)
            )
    return Drawing(boxes=tuple(boxes), edges=tuple(edges), anchors=anchors)


def _precision(engine: PredictedEngine, index: int) -> str:
    kernel = engine.kernel_of[index]
    if kernel.reads == "int8":
        return "int8"
    return next(
        (found for node in kernel.nodes if (found := engine.graph.dtype(node.outputs[0]))),
        "float32",
    )


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
    return "?" if shape is None else " x ".join("?" if dim is None else str(dim) for dim in shape)
