"""Order of an ONNX graph's nodes: writers and topological order."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from qat_lib.errors import ExportError

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node


def find_producers(nodes: list[Node], given: set[str]) -> dict[str, Node]:
    """Return the node that writes each tensor.

    Raises:
        ExportError: two nodes write a tensor, or one writes a tensor that is ``given``.
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


def topological(
    nodes: list[Node], producers: Mapping[str, Node], given: set[str]
) -> tuple[Node, ...]:
    """Order nodes after what they read.

    They stay as in the file where that is an order; else Kahn's algorithm orders them.

    Raises:
        ExportError: the nodes form a cycle, or one reads a tensor that has no producer.
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
