"""Two traces of one module, by torch.fx: in both modes, or for two batch sizes.

Where their constants differ, code chose them by the mode or from the size, and they become nodes.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx, nn

logger = logging.getLogger("qat_lib")

FLAG = "qatline_training"
"""Name of the submodule that returns whether the model is training."""


class TrainingFlag(nn.Module):
    """Submodule that replaces reads of ``self.training`` in traced code."""

    def forward(self) -> bool:
        """Return whether the model is training."""
        return bool(self.training)


def follow_mode(traced: fx.GraphModule, nodes: Sequence[fx.Node], other: fx.Graph) -> bool:
    """Replace the constants that differ from the trace in the other mode by the training flag.

    Args:
        traced: the traced module.
        nodes: the nodes of its trace.
        other: the trace in the other mode.

    Returns:
        Whether the traced module now computes as the module does in both modes.
    """
    twins = list(other.nodes)
    # Different nodes in both modes: constants alone can't represent the difference.
    if _forms(nodes, bool) != _forms(twins, bool):
        logger.warning(
            "The forward of %s computes differently in training and in inference. Its quantized "
            "copy always computes as it does %s.",
            type(traced).__name__,
            "in training" if traced.training else "in inference",
        )
        return False
    mode = _Mode(traced)
    _replace_different(
        nodes, twins, bool, lambda mine, twin: mode.node(mine if traced.training else twin)
    )
    return True


def follow_batch(nodes: Sequence[fx.Node], other: fx.Graph, sizes: tuple[int, int]) -> bool:
    """Replace multiples of the batch size, such as ``int(x.shape[0])``, by its node.

    Args:
        nodes: the nodes of a trace; its first input has the samples along its first axis.
        other: a trace for another batch size.
        sizes: the batch sizes of both traces.

    Returns:
        Whether there were any.
    """
    twins = list(other.nodes)
    if _forms(nodes, int) != _forms(twins, int):
        return False
    graph, source = nodes[0].graph, nodes[0]
    after_inputs = next(node for node in nodes if node.op != "placeholder")
    multiples: dict[int, fx.Node] = {}

    def multiple(mine: int, twin: int) -> Any:
        factor, rest = divmod(mine, sizes[0])
        if rest or factor * sizes[1] != twin:
            return mine
        with graph.inserting_before(after_inputs):
            if not multiples:
                multiples[1] = graph.call_method("size", (source, 0))
            if factor not in multiples:
                multiples[factor] = graph.call_function(operator.mul, (multiples[1], factor))
        return multiples[factor]

    _replace_different(nodes, twins, int, multiple)
    return bool(multiples)


def _forms(nodes: Sequence[fx.Node], kind: type) -> list[Any]:
    """Return descriptions of nodes without their constants of one type."""

    def describe(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return value.name
        return "?" if type(value) is kind else value

    return [
        (node.op, node.name, node.target, repr(fx.node.map_aggregate(_arguments(node), describe)))
        for node in nodes
    ]


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return (node.args, dict(node.kwargs))


def _replace_different(
    nodes: Sequence[fx.Node],
    twins: Sequence[fx.Node],
    kind: type,
    replace: Callable[[Any, Any], Any],
) -> None:
    """Replace each constant of one type that differs between nodes and their twins."""

    def blended(mine: Any, twin: Any) -> Any:
        if isinstance(mine, (tuple, list)):
            parts = [blended(a, b) for a, b in zip(mine, twin, strict=True)]
            if all(map(operator.is_, parts, mine)):
                return mine  # such as a namedtuple that forward returns
            return parts if isinstance(mine, list) else tuple(parts)
        if isinstance(mine, dict):
            return {key: blended(value, twin[key]) for key, value in mine.items()}
        if isinstance(mine, slice):
            ends = zip(*((x.start, x.stop, x.step) for x in (mine, twin)), strict=True)
            return slice(*(blended(a, b) for a, b in ends))
        return replace(mine, twin) if type(mine) is kind and mine != twin else mine

    for node, twin in zip(nodes, twins, strict=True):
        node.args, node.kwargs = blended(_arguments(node), _arguments(twin))


class _Mode:
    """Nodes that return whether the model is training, created on demand."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._nodes: dict[bool, fx.Node] = {}

    def node(self, in_training: bool) -> fx.Node:
        """Return the node with the value ``in_training`` in training, else its negation."""
        graph = self._traced.graph
        if True not in self._nodes:
            self._traced.add_submodule(FLAG, TrainingFlag().train(self._traced.training))
            first = next(node for node in graph.nodes if node.op != "placeholder")
            with graph.inserting_before(first):
                self._nodes[True] = graph.call_module(FLAG)
        if in_training not in self._nodes:
            with graph.inserting_after(self._nodes[True]):
                self._nodes[False] = graph.call_function(operator.not_, (self._nodes[True],))
        return self._nodes[in_training]
