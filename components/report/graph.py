"""Quantized graph as layers, tensors and Q/DQ pairs, read from an ONNX file.

The ONNX graph contains two nodes per pair, and an initializer with a separate DequantizeLinear per
weight. Here a pair is a property of the tensor, weights are a property of their layer, and an
activation function belongs to the layer of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.identity import Identities
from qatline.components.artifacts.exported import Analysis
from qatline.components.report.graph_view import GraphEdge, GraphNode, GraphView, Pair

_FOLDED = {
    "Relu": "ReLU",
    "Clip": "ReLU6",
    "LeakyRelu": "LeakyReLU",
    "Sigmoid": "Sigmoid",
    "HardSigmoid": "HardSigmoid",
}
_WEIGHTED = onnx_operators("weighted")
#: Operators with a precision of their own; a mean over other axes, and a division, are shown bare.
_ARITHMETIC = (
    _WEIGHTED
    | onnx_operators("max pool")
    | onnx_operators("average pool", "sign preserving")
    | {"Add", "Mul", "Sub", "Concat"}
)
_MOST_NODES = 3000


@dataclass
class _Builder:
    """State of one pass over the nodes in ONNX's topological order."""

    constants: dict[str, Any]
    identities: Identities
    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: list[GraphEdge] = field(default_factory=list)
    producer: dict[str, str] = field(default_factory=dict)
    # Tensor after a DequantizeLinear -> tensor before the QuantizeLinear, for activations.
    pairs: dict[str, tuple[str, Pair]] = field(default_factory=dict)
    # Tensor after a DequantizeLinear -> number of ranges, for weights.
    weights: dict[str, int] = field(default_factory=dict)
    quantized: dict[str, tuple[str, str]] = field(default_factory=dict)
    readers: dict[str, int] = field(default_factory=dict)


def read_view(path: Path) -> GraphView | None:
    """Read an ONNX file into a view; return None if it is too large.

    Raises:
        ValueError: the file is not an ONNX model, or its graph is not ordered.
    """
    from onnx import numpy_helper

    from qat_lib.errors import ExportError
    from qat_lib.onnx_view.loading import load_onnx
    from qat_lib.onnx_view.metadata import read_metadata

    try:
        model = load_onnx(path)
        identities = Identities.of_metadata(read_metadata(model))
    except ExportError as error:
        raise ValueError(f"{path.name} is no ONNX model: {error}") from error
    graph = model.graph
    if len(graph.node) > _MOST_NODES:
        return None
    constants = {tensor.name: tensor for tensor in graph.initializer}

    def number(name: str) -> Any:
        tensor = constants.get(name)
        return (
            None if tensor is None or tensor.data_location == 1 else numpy_helper.to_array(tensor)
        )

    inputs = [value.name for value in graph.input if value.name not in constants]
    outputs = [value.name for value in graph.output]
    return build_view(graph.node, inputs, outputs, constants, number, identities)


def build_view(
    nodes: Iterable[Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    constants: Mapping[str, Any],
    number: Callable[[str], Any],
    identities: Identities,
) -> GraphView:
    """Return the view of a graph.

    Args:
        nodes: ONNX nodes in topological order.
        inputs: names of the graph's inputs, without initializers.
        outputs: names of its outputs.
        constants: names of the initializers; their values are not read.
        number: returns an initializer's array, or None.
        identities: Keras layers of the nodes.
    """
    listed = list(nodes)
    builder = _Builder(constants=dict(constants), identities=identities)
    for node in listed:
        for name in node.input:
            builder.readers[name] = builder.readers.get(name, 0) + 1
    for name in outputs:
        builder.readers[name] = builder.readers.get(name, 0) + 1
    for name in inputs:
        key = f"in:{name}"
        builder.nodes[key] = GraphNode(key=key, title=name, kind="Input")
        builder.producer[name] = key
    for index, node in enumerate(listed):
        _add(builder, node, f"n{index}", number)
    for name in outputs:
        key = f"out:{name}"
        builder.nodes[key] = GraphNode(key=key, title=name, kind="Output")
        _connect(builder, name, key)
    return GraphView(nodes=tuple(builder.nodes.values()), edges=tuple(builder.edges))


def _add(builder: _Builder, node: Any, key: str, number: Callable[[str], Any]) -> None:
    if node.op_type == "QuantizeLinear":
        _quantize(builder, node)
    elif node.op_type == "DequantizeLinear":
        _dequantize(builder, node, number)
    elif node.op_type == "Constant" or (
        node.input and all(name in builder.constants or not name for name in node.input)
    ):
        builder.constants.update(dict.fromkeys(node.output))
    elif all(name in builder.weights or name in builder.constants for name in node.input if name):
        # Reshaping or transposing a weight after its DequantizeLinear does not change its identity.
        ranges = max((builder.weights.get(name, 0) for name in node.input), default=0)
        builder.weights.update(dict.fromkeys(node.output, ranges))
    elif not _fold(builder, node):
        _place(builder, node, key)


def _quantize(builder: _Builder, node: Any) -> None:
    source = node.input[0]
    if source in builder.constants:
        builder.constants.update(dict.fromkeys(node.output))
    else:
        builder.quantized[node.output[0]] = (source, node.name or node.output[0])


def _dequantize(builder: _Builder, node: Any, number: Callable[[str], Any]) -> None:
    scale = number(node.input[1]) if len(node.input) > 1 else None
    if node.input[0] in builder.constants:
        builder.weights[node.output[0]] = 1 if scale is None else int(scale.size)
        return
    source, name = builder.quantized.get(node.input[0], (node.input[0], node.name))
    zero_point = number(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    unsigned = zero_point is not None and zero_point.dtype == "uint8" and not zero_point.any()
    amax = (
        float(abs(scale).max()) * (255 if unsigned else 127)
        if scale is not None and scale.size
        else None
    )
    builder.pairs[node.output[0]] = (source, Pair(name=name, amax=amax, unsigned=unsigned))


def _fold(builder: _Builder, node: Any) -> bool:
    """Fold an activation function into its producer if it is the only reader."""
    label = _FOLDED.get(node.op_type)
    key = builder.producer.get(node.input[0]) if label and node.input else None
    if key is None or builder.readers.get(node.input[0], 0) != 1 or node.input[0] in builder.pairs:
        return False
    before = builder.nodes[key]
    if before.kind.split()[0] not in _ARITHMETIC | {"BatchNormalization"}:
        return False
    builder.nodes[key] = replace(
        before, kind=f"{before.kind} + {label}", names=(*before.names, node.name)
    )
    builder.producer[node.output[0]] = key
    return True


def _place(builder: _Builder, node: Any, key: str) -> None:
    data = [
        name
        for name in node.input
        if name and name not in builder.constants and name not in builder.weights
    ]
    ranges = max((builder.weights.get(name, 0) for name in node.input), default=0)
    builder.nodes[key] = GraphNode(
        key=key,
        title=builder.identities.keras_layer(node.name) or node.op_type,
        kind=_kind(node),
        precision=_precision(builder, node, data, ranges),
        weights=ranges,
        names=(node.name,),
    )
    for name in data:
        _connect(builder, name, key)
    for name in node.output:
        builder.producer[name] = key


def _connect(builder: _Builder, name: str, target: str) -> None:
    source, pair = builder.pairs.get(name, (name, None))
    key = builder.producer.get(source)
    if key is None:
        return
    if pair is not None and builder.nodes[key].output is None:
        builder.nodes[key] = replace(builder.nodes[key], output=pair)
    builder.edges.append(GraphEdge(source=key, target=target, quantized=pair is not None))


def _precision(builder: _Builder, node: Any, data: Sequence[str], ranges: int) -> str:
    if node.op_type not in _ARITHMETIC:
        return ""
    # An Add with a constant operand is a bias and not a separate layer.
    quantized = bool(data) and all(name in builder.pairs for name in data)
    if node.op_type in _WEIGHTED and len(data) == 1:
        quantized = quantized and ranges > 0
    return "int8" if quantized else "float"


def with_analysis(view: GraphView, analysis: Analysis) -> GraphView:
    """Return the view with the precisions predicted by the fusion analysis."""
    predicted = (*analysis.layers, *analysis.adds, *analysis.pools)
    known = {prediction.name: prediction for prediction in predicted}
    titles = {name: node.title for node in view.nodes for name in node.names}
    nodes = []
    for node in view.nodes:
        found = next((known[name] for name in node.names if name in known), None)
        if found is not None and found.precision:
            precision = "int8" if found.precision == "int8" else "float"
            node = replace(node, precision=precision, fused=titles.get(found.fused_into, ""))
        nodes.append(node)
    return GraphView(nodes=tuple(nodes), edges=view.edges)


def _kind(node: Any) -> str:
    values = {attribute.name: attribute for attribute in node.attribute}
    words = [node.op_type]
    kernel = list(values["kernel_shape"].ints) if "kernel_shape" in values else []
    if kernel:
        words.append("×".join(map(str, kernel)))
    strides = list(values["strides"].ints) if "strides" in values else []
    if any(step != 1 for step in strides):
        words.append(
            "/" + ("×".join(map(str, strides)) if len(set(strides)) > 1 else str(strides[0]))
        )
    group = values["group"].i if "group" in values else 1
    if group > 1:
        words.append(f"groups {group}")
    return " ".join(words)
