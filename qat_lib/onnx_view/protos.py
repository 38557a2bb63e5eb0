"""Traversal of the messages of an ONNX file: tensors, nodes and subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph: initializers and attributes, subgraphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for subgraph in subgraphs_of(attribute):
                yield from tensors_of(subgraph)


def subgraphs_of(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Return an attribute's graphs, such as the branches of an If."""
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)


def nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for subgraph in subgraphs_of(attribute):
                yield from nodes_of(subgraph.node)


def message_names(messages: Iterable[Any]) -> list[str]:
    """Return the names of tensors, values or nodes."""
    return [message.name for message in messages]


def input_name(node: onnx.NodeProto, index: int) -> str:
    """Return the name of a node's input; empty for an omitted input."""
    return node.input[index] if index < len(node.input) else ""


def writers(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Return the node that writes each tensor."""
    found = {}
    for node in nodes:
        found.update(dict.fromkeys(node.output, node))
    return found
