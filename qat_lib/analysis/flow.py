"""The graph with its Q/DQ pairs moved onto the edges.

A ``qat_lib.analysis.reads.Read`` is one operator reading one value; Q and DQ nodes on the path
become the ``scale`` of the read. Remaining operators are kernel candidates: Identity, inference
Dropout and constant subgraphs are removed. Two reads with bit-equal scales share one INT8 tensor,
as in TensorRT.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from qat_lib.analysis.reads import Read, Scale
from qat_lib.analysis.rules.pair import is_legal
from qat_lib.errors import ExportError
from qat_lib.graph.roles import PAIR, onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import DEQUANTIZE, QUANTIZE, quantized_type, well_formed
from qat_lib.support.mappings import map_values

_TRANSPARENT = onnx_operators("identity")


class Flow:
    """Operators, values, and the readers of each value with their precision."""

    def __init__(
        self, graph: OnnxGraph, operators: Iterable[Node], reads: Iterable[Read], tracer: Tracer
    ) -> None:
        self.graph = graph
        self._tracer = tracer
        self.operators = tuple(operators)
        inputs: dict[int, list[Read]] = defaultdict(list)
        by_value: dict[str, list[Read]] = defaultdict(list)
        for read in reads:
            if read.node is not None:
                inputs[read.node.index].append(read)
            by_value[read.value].append(read)
        for found in inputs.values():
            found.sort(key=lambda read: read.position)
        self._inputs = map_values(tuple, inputs)
        self._by_value = map_values(tuple, by_value)

    @classmethod
    def of(cls, graph: OnnxGraph, *, allow_uint8: bool = False) -> Flow:
        """Move the Q/DQ pairs of ``graph`` from nodes to edges."""
        tracer = Tracer(graph, allow_uint8=allow_uint8)
        operators = [node for node in graph.nodes if _is_operator(graph, node)]
        reads = []
        for node in operators:
            # Subgraphs of control flow read outer values without listing them as inputs.
            for position, name in enumerate((*node.inputs, *node.captures)):
                if name:
                    reads.append(tracer.read(name, node, position))
        for index, name in enumerate(graph.outputs):
            reads.append(tracer.read(name, None, index))
        return cls(graph, operators, reads, tracer)

    @property
    def values(self) -> Iterable[str]:
        """All values with a reader."""
        return self._by_value.keys()

    @property
    def reads(self) -> Iterable[Read]:
        """All reads, grouped by value."""
        return chain.from_iterable(self._by_value.values())

    def inputs(self, node: Node) -> tuple[Read, ...]:
        """Return the reads of ``node``, constants included, in input order."""
        return self._inputs.get(node.index, ())

    def input(self, node: Node, position: int) -> Read | None:
        """Return the read at an input position, None if absent."""
        for read in self.inputs(node):
            if read.position == position:
                return read
        return None

    def data_inputs(self, node: Node) -> tuple[Read, ...]:
        """Return the reads of ``node`` that depend on a graph input."""
        return tuple(read for read in self.inputs(node) if not self.graph.is_constant(read.value))

    def readers(self, value: str) -> tuple[Read, ...]:
        """Return all reads of a value, the graph's outputs included."""
        return self._by_value.get(value, ())

    def output_reads(self, node: Node) -> tuple[Read, ...]:
        """Return all reads of the outputs of ``node``."""
        return tuple(chain.from_iterable(map(self.readers, node.outputs)))

    def only_reader(self, value: str) -> Read | None:
        """Return the only read of a value; None if it has several or none."""
        found = self.readers(value)
        return found[0] if len(found) == 1 else None

    def common_scale(self, value: str) -> Scale | None:
        """Return the scale shared by all reads of ``value``; None if one differs or is float."""
        scales = {read.entry for read in self.readers(value)}
        return scales.pop() if len(scales) == 1 else None

    def trace(self, tensor: str) -> Read:
        """Return a read of the source value of ``tensor``, without a reader."""
        return self._tracer.read(tensor, None, 0)

    def with_scales(self, scales: Mapping[Read, Scale]) -> Flow:
        """Return a copy with these scales on the given reads."""
        reads = []
        for read in self.reads:
            reads.append(replace(read, scale=scales[read]) if read in scales else read)
        return Flow(self.graph, self.operators, reads, self._tracer)


def _is_operator(graph: OnnxGraph, node: Node) -> bool:
    if node.op in PAIR and well_formed(node):
        return False
    if _is_transparent(graph, node):
        return False
    return not all(map(graph.is_constant, filter(None, node.outputs)))


def _is_transparent(graph: OnnxGraph, node: Node) -> bool:
    if node.op not in _TRANSPARENT or not node.input(0):
        return False
    # The third input of Dropout is training_mode: given, the operator may drop values.
    mask_is_read = any(map(graph.consumers, filter(None, node.outputs[1:])))
    return not mask_is_read and not (node.op == "Dropout" and node.input(2))


def _scales(graph: OnnxGraph, *, allow_uint8: bool) -> dict[int, Scale]:
    """Return the scale of every Q and DQ, by node index."""
    found = {}
    for node in graph.nodes:
        if node.op not in PAIR or not well_formed(node):
            continue
        values = graph.value(node.input(1))
        quantized = _integer_type(graph, node)
        legal = is_legal(graph, node, allow_uint8=allow_uint8)
        float_type = graph.dtype(node.input(1)) or "float32"
        # Unreadable: equal to nothing but itself (the parser rules report it)
        if values is None or not values.size:
            found[node.index] = Scale(
                key=(node.input(1).encode(), None, quantized), largest=float("nan"), legal=legal
            )
            continue
        axis = node.integer("axis", 1) if values.size > 1 else None
        key = (str(values.dtype).encode() + values.tobytes(), axis, quantized)
        with np.errstate(invalid="ignore"):  # a scale of NaN is the parser rules' business
            largest = float(values.astype(np.float64).max())
        found[node.index] = Scale(
            key=key,
            largest=largest,
            count=values.size,
            axis=axis,
            float_type=float_type,
            legal=legal,
        )
    return found


def _integer_type(graph: OnnxGraph, node: Node) -> str:
    """Return TensorRT's integer type of a Q or DQ; INT8 without a zero point."""
    if node.input(2):
        return graph.dtype(node.input(2)) or "int8"
    source = graph.producer(node.input(0)) if node.op == DEQUANTIZE else None
    if source is not None and source.op == QUANTIZE and well_formed(source):
        return _integer_type(graph, source)
    return (quantized_type(graph, node) if node.op == DEQUANTIZE else "") or "int8"


class Tracer:
    """Trace a tensor back through quantizers to the quantized value."""

    #: Limit of quantizers passed by all walks. A network passes two for each read; a chain of n
    #: quantizers with n readers would take quadratic time.
    MAX_PASSED = 2_000_000

    def __init__(self, graph: OnnxGraph, *, allow_uint8: bool = False) -> None:
        self._graph = graph
        self._scales = _scales(graph, allow_uint8=allow_uint8)
        self._room = self.MAX_PASSED
        self._copies: dict[str, str] = {}  # output of Identities -> what they copy
        for node in graph.nodes:
            if node.index not in self._scales and _is_transparent(graph, node):
                # Nodes are in topological order, so chains of copies resolve in one pass.
                self._copies[node.outputs[0]] = self._copied(node.input(0))

    def read(self, tensor: str, node: Node | None, position: int) -> Read:
        """Return the read of ``tensor`` by ``node`` at an input position.

        Raises:
            ExportError: the graph contains thousands of quantizers in a row.
        """
        passed: list[Node] = []
        tensor = self._copied(tensor)
        source = self._graph.producer(tensor)
        while source is not None and source.index in self._scales:
            passed.append(source)
            tensor = self._copied(source.input(0))
            source = self._graph.producer(tensor)
        self._room -= len(passed)
        if self._room < 0:
            raise ExportError(
                "Expected tensors that are quantized once. Received a graph with thousands of "
                f"quantizers in a row in front of {node.name if node else tensor!r}. Export it "
                "again."
            )
        passed.reverse()
        explicit: list[Scale] = []
        for quantizer in passed:
            scale = self._scales[quantizer.index]
            # A DQ closes its Q; equal scales in a row cancel.
            if not explicit or explicit[-1] != scale:
                explicit.append(scale)
        return Read(
            node=node,
            position=position,
            value=tensor,
            explicit=tuple(explicit),
            scale=explicit[-1] if explicit else None,
            quantizers=tuple(quantizer.name for quantizer in passed),
        )

    def _copied(self, tensor: str) -> str:
        return self._copies.get(tensor, tensor)
