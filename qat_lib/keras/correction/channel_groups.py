"""Tensors whose channels can be scaled together without a change of the outputs.

What makes a channel multiplies it by a factor, what reads it divides it by the same one, and ReLUs,
additions and poolings in between keep positive factors. A group is what additions tie together, such
as all tensors along the shortcuts of a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from qat_lib.graph.call_graph import CallGraph, GraphCall

Part: TypeAlias = Literal["through", "both", "makes", "reads", "other"]
"""What a call does with factors on channels: hands them on to all its tensors; divides its weights
by those of its input, and multiplies them by those of its output; only the latter; only the former;
nothing, so that its tensors have none."""


@dataclass(kw_only=True)
class ChannelGroup:
    """Tensors with one factor for each channel.

    Attributes:
        tensors: names of the tensors.
        makers: calls whose weights multiply the channels.
        readers: calls whose weights divide them, each with the tensor that it reads.
        through: calls between these that keep factors.
    """

    tensors: list[str] = field(default_factory=list)
    makers: list[Any] = field(default_factory=list)
    readers: list[tuple[Any, str]] = field(default_factory=list)
    through: list[Any] = field(default_factory=list)


def channel_groups(graph: CallGraph, part: Callable[[GraphCall], Part]) -> list[ChannelGroup]:
    """Return the groups of a model's graph that have readers, in the order of the calls.

    Args:
        graph: the graph of a model.
        part: what a call does to factors.
    """
    ties = _Ties(graph)
    blocked = {*graph.inputs, *graph.outputs}
    parts: dict[str, Part] = {}
    for call in graph.calls:
        known = part(call) if len(graph.calls_of(call.layer)) == 1 else "other"
        parts[call.name] = known
        if known == "through":
            ties.tie([*call.inputs, *call.outputs])
        if known in ("makes", "other"):
            blocked.update(call.inputs)
        if known in ("reads", "other"):
            blocked.update(call.outputs)
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
    """Add a tensor with its maker and its readers to a group."""
    group.tensors.append(tensor)
    (group.through if parts[call.name] == "through" else group.makers).append(call)
    for reader, _ in graph.consumers(tensor):
        if parts[reader.name] in ("both", "reads"):
            group.readers.append((reader, tensor))


class _Ties:
    """Tensors tied to one another, each known by one of them."""

    def __init__(self, graph: CallGraph) -> None:
        self._above = {tensor: tensor for tensor in graph.order}

    def root(self, tensor: str) -> str:
        """Return the tensor that stands for all that are tied to one."""
        while self._above[tensor] != tensor:
            tensor = self._above[tensor]
        return tensor

    def tie(self, tensors: list[str]) -> None:
        """Tie tensors to one another."""
        for tensor in tensors[1:]:
            self._above[self.root(tensor)] = self.root(tensors[0])
