"""Read-only ONNX graph: ordered nodes, tensor types, small constants.

This module is independent of quantization. Weights are not unpacked; constants of up to ``SMALL``
elements (scales, zero points, shapes) can be read as arrays.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
from onnx.checker import ValidationError

from qat_lib.errors import ExportError
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.identity import Identities, guess_layer
from qat_lib.onnx_view.loading import load_onnx
from qat_lib.onnx_view.metadata import read_metadata
from qat_lib.onnx_view.protos import message_names, subgraphs_of
from qat_lib.onnx_view.shapes import Dim, TensorType, infer_types
from qat_lib.onnx_view.tensor_data import quantized
from qat_lib.support.mappings import map_values

SMALL = 1 << 20
#: Largest cached array: scales and zero points are read repeatedly, larger arrays rarely.
_REMEMBERED = 1 << 12
_BYTES = ("int8", "uint8")
_RANDOM = onnx_operators("random")
_SHAPE_OF = onnx_operators("shape")
_MOVERS = onnx_operators("range preserving")


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """One ONNX node.

    Attributes:
        index: position in the file.
        name: name of the node; ``<op>_<index>`` for an unnamed one.
        op: operator, prefixed with the domain unless it is the standard one.
        inputs: input tensors; empty for an absent one.
        outputs: output tensors.
        captures: outer tensors that subgraphs of the node read.
        attributes: attributes except subgraphs.
        keras_layer: Keras layer of the node, guessed in files of other producers.
        quantizer: quantizer of a Q or DQ node; empty for other nodes.
    """

    index: int
    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captures: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keras_layer: str = ""
    quantizer: str = ""

    def input(self, position: int) -> str:
        """Return the tensor at an input position; empty if absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return an integer attribute, or ``default`` if it is absent or of another type."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list attribute, or None if it is absent or of another type."""
        value = self.attributes.get(name)
        return (
            tuple(value)
            if isinstance(value, list) and all(isinstance(item, int) for item in value)
            else None
        )

    def text(self, name: str, default: str) -> str:
        """Return a text attribute, or ``default`` if it is absent or of another type."""
        value = self.attributes.get(name)
        return value.decode(errors="replace") if isinstance(value, bytes) else default


class OnnxGraph:
    """Graph of an ONNX model for the analysis.

    Attributes:
        nodes: nodes in topological order.
        inputs: graph inputs except initializers.
        outputs: graph outputs.
        opset: version of the standard operator set.
        constants: names of tensors independent of the data of graph inputs (they may depend on
            shapes).
        identities: recorded Keras layers and quantizers of the nodes.
        target: target backend of the export, from the metadata; None in a file of another producer.
    """

    def __init__(self, model: onnx.ModelProto, *, base_dir: Path | None = None) -> None:
        """View ``model``; read the small tensors of external data relative to ``base_dir``.

        Raises:
            ExportError: the nodes form a cycle, a tensor has two producers or none, or the record
                of the nodes' identities is damaged.
        """
        self._base_dir = base_dir
        self._initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        sparse = {tensor.values.name for tensor in model.graph.sparse_initializer}
        given = {*message_names(model.graph.input), *self._initializers, *sparse}
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
        # Before IR version 4, initializers are listed as graph inputs, too.
        self.inputs = tuple(i.name for i in model.graph.input if i.name not in self._initializers)
        self.outputs = tuple(message_names(model.graph.output))
        metadata = read_metadata(model)
        self.identities = Identities.of_metadata(metadata)
        self.target = metadata.get("target")
        protos = enumerate(model.graph.node)
        nodes = [_node(index, proto, self.identities) for index, proto in protos]
        self._producers = _find_producers(nodes, given)
        self.nodes = _topological(nodes, self._producers, {*given, ""})
        consumers: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            # A node that reads a tensor twice counts once.
            for name in dict.fromkeys((*node.inputs, *node.captures)):
                consumers[name].append(node)
        self._consumers = map_values(tuple, consumers)
        self.constants = self._find_constants(sparse)
        self._model = model
        self._values: dict[str, np.ndarray[Any, Any] | None] = {}

    @classmethod
    def load(cls, path: str | Path) -> OnnxGraph:
        """Read an ONNX file, see ``qat_lib.onnx_view.loading.load_onnx``."""
        return cls(load_onnx(path), base_dir=Path(path).resolve().parent)

    def producer(self, tensor: str) -> Node | None:
        """Return the node that writes ``tensor``, or None for graph inputs and initializers."""
        return self._producers.get(tensor)

    def consumers(self, tensor: str) -> tuple[Node, ...]:
        """Return the nodes that read ``tensor``, each once, subgraphs included."""
        return self._consumers.get(tensor, ())

    def is_constant(self, tensor: str) -> bool:
        """Return whether ``tensor`` is independent of the graph inputs' data."""
        return tensor in self.constants

    def shape(self, tensor: str) -> tuple[Dim, ...] | None:
        """Return the shape, with None or a name for open dimensions; None for unknown rank."""
        found = self._types.get(tensor)
        return found.shape if found else None

    def dtype(self, tensor: str) -> str:
        """Return the element type (``"float32"``, ``"int8"``...); empty if unknown."""
        found = self._types.get(tensor)
        return found.dtype if found else ""

    def moves_values(self, node: Node) -> bool:
        """Return whether ``node`` only moves or selects numbers, and so commutes with Q and DQ."""
        if node.op == "Pad":
            if node.text("mode", "constant") != "constant":
                return False
            if not node.input(2):
                return not node.attributes.get("value", 0.0)
            value = self.value(node.input(2))
            return value is not None and not np.count_nonzero(value)
        if node.op == "Resize":
            return node.text("mode", "nearest") == "nearest"
        return node.op in _MOVERS

    def value(self, tensor: str) -> np.ndarray[Any, Any] | None:
        """Return a constant of at most ``SMALL`` elements, through Identity and Cast, else None."""
        if tensor not in self._values:
            found = self._read_value(tensor, SMALL)
            if found is not None and found.size > _REMEMBERED:
                return found
            self._values[tensor] = found
        return self._values[tensor]

    def weights(self, tensor: str) -> np.ndarray[Any, Any] | None:
        """Return a constant of any size, like ``value``, without caching it.

        Graphs for TensorRT 8.6 store weights in float32: the integers of their QuantizeLinear are
        computed.
        """
        node = self._producers.get(tensor)
        if node is None or node.op != "QuantizeLinear":
            return self._read_value(tensor, None)
        values, scale, zero = (self._read_value(node.input(index), None) for index in range(3))
        if values is None or scale is None or zero is None or zero.dtype.name not in _BYTES:
            return None
        return quantized(values, scale, zero, node.integer("axis", 1) or 0)

    def _read_value(self, tensor: str, most: int | None) -> np.ndarray[Any, Any] | None:
        # A file may chain any number of these.
        for _ in range(64):
            node = self._producers.get(tensor)
            if node is None or node.op not in ("Identity", "Cast"):
                break
            tensor = node.input(0)
        proto = self._initializers.get(tensor)
        if proto is None:
            node = self._producers.get(tensor)
            if node is None or node.op != "Constant" or not node.attributes:
                return None
            name, attribute = next(iter(node.attributes.items()))
            if name != "value":
                return (
                    np.asarray(attribute) if name.startswith(("value_int", "value_float")) else None
                )
            proto = attribute
        return self._unpack(proto, most)

    def _unpack(self, proto: onnx.TensorProto, most: int | None) -> np.ndarray[Any, Any] | None:
        if min(proto.dims, default=0) < 0 or (most is not None and prod(proto.dims) > most):
            return None
        try:
            if proto.data_location == onnx.TensorProto.EXTERNAL:
                if self._base_dir is None:
                    return None
                loaded = onnx.TensorProto()
                # A copy: the loader writes the data into the proto, and the model would keep all
                # weights.
                loaded.CopyFrom(proto)
                onnx.external_data_helper.load_external_data_for_tensor(loaded, str(self._base_dir))
                proto = loaded
            return np.asarray(onnx.numpy_helper.to_array(proto))
        except (ValueError, TypeError, KeyError, OSError, RuntimeError, ValidationError) as error:
            raise ExportError(
                f"Expected tensor {proto.name!r} to hold {list(proto.dims)} values. Its data can't "
                f"be read: {error}."
            ) from error

    def _find_constants(self, sparse: set[str]) -> frozenset[str]:
        found = {*self._initializers, *sparse}
        for node in self.nodes:
            reads = {*node.inputs, *node.captures} - {""}
            # The output of a Shape depends on the shape only, not on the data of a graph input.
            if node.op in _SHAPE_OF or (node.op not in _RANDOM and reads <= found):
                found.update(node.outputs)
        return frozenset(found)

    def keras_layer(self, name: str) -> str:
        """Return the Keras layer of a node or of a tensor's writer."""
        node = self.node_by_name.get(name) or self._producers.get(name)
        return guess_layer(name) if node is None else node.keras_layer

    @cached_property
    def _types(self) -> Mapping[str, TensorType]:
        return infer_types(self._model)

    @cached_property
    def output_names(self) -> frozenset[str]:
        """Names of the graph's outputs."""
        return frozenset(self.outputs)

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return MappingProxyType({node.name: node for node in self.nodes})


def _node(index: int, proto: onnx.NodeProto, identities: Identities) -> Node:
    name = proto.name or f"{proto.op_type}_{index}"
    # "ai.onnx" is an alias of the empty domain.
    op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    attributes, captures = {}, {}
    for attribute in proto.attribute:
        for subgraph in subgraphs_of(attribute):
            captures.update(dict.fromkeys(captured(subgraph)))
        if not subgraphs_of(attribute):
            try:
                attributes[attribute.name] = onnx.helper.get_attribute_value(attribute)
            # An attribute without a type counts as absent.
            except ValueError:
                continue
    return Node(
        index=index,
        name=name,
        op=op,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        captures=tuple(captures),
        attributes=attributes,
        keras_layer=identities.keras_layer(name),
        quantizer=identities.quantizer(name, op),
    )


def captured(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the outer tensors that a subgraph reads."""
    # All outputs first: nodes of a subgraph may be in any order in a damaged file.
    inner = {"", *message_names(graph.initializer), *message_names(graph.input)}
    for node in graph.node:
        inner.update(node.output)
    for node in graph.node:
        reads = list(node.input)
        for attribute in node.attribute:
            for subgraph in subgraphs_of(attribute):
                reads.extend(captured(subgraph))
        yield from (name for name in reads if name not in inner)
    yield from (name for name in message_names(graph.output) if name not in inner)


def _find_producers(nodes: list[Node], given: set[str]) -> dict[str, Node]:
    """Return the node that writes each tensor.

    Raises:
        ExportError: two nodes write the same tensor, or a node writes a ``given`` tensor.
    """
    producers: dict[str, Node] = {}
    for node in nodes:
        for output in filter(None, node.outputs):
            if output in producers or output in given:
                raise ExportError(
                    f"Expected every tensor to have one producer. {output!r} is written by node "
                    f"{node.name!r} and once more elsewhere: the graph is not valid ONNX. Export "
                    "it again."
                )
            producers[output] = node
    return producers


def _topological(
    nodes: list[Node], producers: Mapping[str, Node], given: set[str]
) -> tuple[Node, ...]:
    """Return the nodes in topological order.

    The order of the file is kept if it is topological; otherwise, Kahn's algorithm sorts the nodes.

    Raises:
        ExportError: the nodes form a cycle, or a node reads a tensor without a producer.
    """
    sources: dict[int, set[int]] = {}
    readers: dict[int, list[Node]] = defaultdict(list)
    ordered = True
    for node in nodes:
        sources[node.index] = _sources(node, producers, given)
        for source in sources[node.index]:
            readers[source].append(node)
            ordered = ordered and source < node.index
    if ordered:
        return tuple(nodes)
    order: list[Node] = []
    ready = deque(node for node in nodes if not sources[node.index])
    while ready:
        node = ready.popleft()
        order.append(node)
        for reader in readers[node.index]:
            sources[reader.index].remove(node.index)
            if not sources[reader.index]:
                ready.append(reader)
    if len(order) < len(nodes):
        stuck = next(node.name for node in nodes if sources[node.index])
        raise ExportError(
            f"Expected a graph without cycles. Node {stuck!r} waits for its own output: the graph "
            "is not valid ONNX. Export it again."
        )
    return tuple(order)


def _sources(node: Node, producers: Mapping[str, Node], given: set[str]) -> set[int]:
    found = set()
    for name in (*node.inputs, *node.captures):
        source = producers.get(name)
        if source is not None:
            found.add(source.index)
        elif name not in given:
            raise ExportError(
                f"Expected every tensor to have a producer. Node {node.name!r} reads {name!r}, "
                "which no node writes and which is no input or initializer: the graph is not valid "
                "ONNX. Export it again."
            )
    return found
