"""Groups of tensors with a common scaling of channels that does not change the outputs.

The layers that compute a channel multiply it by a factor, the layers that read it divide by the
same factor, and ReLUs, additions and poolings in between preserve positive factors. Additions tie
their tensors into one group, such as all tensors along the shortcuts of a ResNet stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from qat_lib.graph.call_graph import CallGraph, GraphCall

Part: TypeAlias = Literal["through", "both", "makes", "reads", "other"]
"""Role of a call for channel factors.

- ``through``: all its tensors have the same factors;
- ``both``: its weights are divided by the input factors and multiplied by the output factors;
- ``makes``: its weights are multiplied by the output factors only;
- ``reads``: its weights are divided by the input factors only;
- ``other``: its tensors can't have factors."""


@dataclass(kw_only=True)
class ChannelGroup:
    """Tensors with the same factor for each channel.

    Attributes:
        tensors: names of the tensors.
        makers: calls with weights to multiply by the factors.
        readers: calls with weights to divide by the factors, each with the tensor read.
        through: calls in between that preserve the factors.
    """

    tensors: list[str] = field(default_factory=list)
    makers: list[Any] = field(default_factory=list)
    readers: list[tuple[Any, str]] = field(default_factory=list)
    through: list[Any] = field(default_factory=list)


def channel_groups(graph: CallGraph, part: Callable[[GraphCall], Part]) -> list[ChannelGroup]:
    """Return the groups with readers, in the order of the calls.

    Args:
        graph: the graph of a model.
        part: returns the role of a call.
    """
    ties = _Ties(graph)
    blocked = {*graph.inputs, *graph.outputs}
    parts: dict[str, Part] = {}
    for call in graph.calls:
        # A layer called twice has one set of weights, but its calls may need different factors.
        known = part(call) if len(graph.calls_of(call.layer)) == 1 else "other"
        parts[call.name] = known
        if known == "through":
            ties.tie([*call.inputs, *call.outputs])
        # The input of a call that ignores input factors must not have any; likewise for outputs.
        if known in ("makes", "other"):
            blocked.update(call.inputs)
        if known in ("reads", "other"):
            blocked.update(call.outputs)
    # One tensor without factors blocks its whole group.
    stuck = {ties.root(tensor) for tensor in blocked}
    groups: dict[str, ChannelGroup] = {}
    for call in graph.calls:
        for tensor in call.outputs:
            if ties.root(tensor) not in stuck:
                group = groups.setdefault(ties.root(tensor), ChannelGroup())
                _add(group, call, tensor, parts, graph)
    return [group for group in groups.values() if group.readers]


def _add(
    group: ChannelGroup, call: GraphCall, tensor: str, parts: dict[str, Part], graph: CallGraph
) -> None:
    """Add a tensor with its maker and readers to a group."""
    group.tensors.append(tensor)
    (group.through if parts[call.name] == "through" else group.makers).append(call)
    for reader, _ in graph.consumers(tensor):
        if parts[reader.name] in ("both", "reads"):
            group.readers.append((reader, tensor))


class _Ties:
    """Disjoint sets of tied tensors (union-find)."""

    def __init__(self, graph: CallGraph) -> None:
        self._above = {tensor: tensor for tensor in graph.order}

    def root(self, tensor: str) -> str:
        """Return the representative of the set of a tensor."""
        while self._above[tensor] != tensor:
            tensor = self._above[tensor]
        return tensor

    def tie(self, tensors: list[str]) -> None:
        """Merge the sets of tensors."""
        for tensor in tensors[1:]:
            self._above[self.root(tensor)] = self.root(tensors[0])
