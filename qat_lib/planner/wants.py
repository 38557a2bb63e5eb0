"""Requests to quantize tensors, their agreement, and the positions of the quantizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from qat_lib.core.plan import Consumer
from qat_lib.core.selection import Decision
from qat_lib.errors import SpecError
from qat_lib.graph.call_graph import CallGraph, GraphCall

Want = tuple[Consumer, Decision | None]
"""Reader of a tensor and the decision to quantize it; None for an existing quantizer."""


class Wants:
    """Tensors requested quantized, with their readers and reasons.

    A quantizer that the model already has, added manually or by an earlier plan, counts as a
    reader, so that other readers of its tensor share it.

    Args:
        graph: the model.
        decided: decision about each quantized layer, by name.

    Raises:
        SpecError: a decision names an input that the layer lacks.
    """

    def __init__(self, graph: CallGraph, decided: Mapping[str, Decision]) -> None:
        self.graph = graph
        self.readers: dict[str, list[Want]] = {}
        for call in graph.calls:
            # An existing quantizer counts as a reader without a decision.
            for index in call.traits.quantized_inputs:
                self._add(call, index, None)
            if (decision := decided.get(call.layer)) is not None and decision.config.quantize_input:
                for index in _chosen(call, decision):
                    tensor = call.inputs[index]
                    # Indices and masks are not quantized, nor is a tensor that already has a
                    # quantizer.
                    is_float = "float" in graph.dtypes[tensor]
                    if is_float and graph.quantizer_on(tensor) is None:
                        self._add(call, index, decision)

    def _add(self, call: GraphCall, index: int, decision: Decision | None) -> None:
        self.readers.setdefault(call.inputs[index], []).append(
            (Consumer(layer=call.name, input=index), decision)
        )

    def root(self, tensor: str) -> str:
        """Return the tensor that gets the quantizer for ``tensor``: its source, or one further up.

        The quantizer moves up through range-preserving layers to a tensor that is requested itself,
        or one with several readers that all request it. It moves in front of a split if its parts
        have one range anyway; the kernel in front then writes INT8.
        """
        best = current = self._source(tensor)
        while True:
            call = self.graph.producer(current)
            # A pool, pad or reshape keeps the range of its input, so one quantizer in front serves both.
            if len(call.inputs) != 1 or not call.traits.preserves_range:
                return best
            is_split = len(call.outputs) > 1
            if is_split and not self._is_joined_again(call):
                return best
            current = call.inputs[0]
            # Moving past a reader that remains in float would quantize its input, too.
            if current in self._sources or (
                (is_split or len(self.graph.consumers(current)) > 1) and self._all_wanted(current)
            ):
                best = current

    def _is_joined_again(self, split: GraphCall) -> bool:
        """Return whether one Concatenate, which ties its inputs, reads all parts of a split."""
        joints = [
            {call.name for call, _ in self.graph.consumers(part) if call.traits.is_concatenate}
            for part in self.graph.read_outputs(split)
        ]
        is_returned = any(part in self.graph.outputs for part in split.outputs)
        return not is_returned and bool(joints and set.intersection(*joints))

    def path(self, root: str, tensor: str) -> list[Want]:
        """Return the readers of ``root`` through which ``tensor`` is quantized."""
        wants = self.readers[tensor]
        current = tensor
        while current != root:
            call = self.graph.producer(current)
            current = call.inputs[0]
            if current == root:
                decision = next((decision for _, decision in wants if decision is not None), None)
                # The range-preserving call reads the quantizer; the readers behind it get its
                # output.
                return [(Consumer(layer=call.name, input=0), decision)]
        return wants

    def _source(self, tensor: str) -> str:
        """Return the tensor before identities and a convolution's zero padding."""
        call = self.graph.producer(tensor)
        while len(call.inputs) == 1 and (call.traits.is_identity or self._pads_convolutions(call)):
            tensor = call.inputs[0]
            call = self.graph.producer(tensor)
        return tensor

    def _pads_convolutions(self, call: GraphCall) -> bool:
        """Return whether only convolutions read this zero padding.

        The export merges it into them. A quantizer behind it would count its zeros in calibration,
        unlike a convolution's own padding.
        """
        tensor = call.outputs[0]
        if call.traits.kind != "ZeroPadding2D" or tensor in self.graph.outputs:
            return False
        readers = [reader.traits.roles for reader, _ in self.graph.consumers(tensor)]
        return all("convolution" in roles and "transposed" not in roles for roles in readers)

    @cached_property
    def _sources(self) -> set[str]:
        return {self._source(tensor) for tensor in self.readers}

    def _all_wanted(self, tensor: str) -> bool:
        """Return whether every reader requests the tensor, also behind pools and pads."""
        readers = self.graph.consumers(tensor)
        wanted = {(consumer.layer, consumer.input) for consumer, _ in self.readers.get(tensor, ())}
        for call, index in readers:
            if (call.name, index) not in wanted and not (
                call.traits.preserves_range
                and all(map(self._all_wanted, self.graph.read_outputs(call)))
            ):
                return False
        return bool(readers)


def _chosen(call: GraphCall, decision: Decision) -> tuple[int, ...]:
    chosen = decision.config.inputs
    if chosen is None:
        return tuple(range(len(call.inputs)))
    if beyond := [i for i in chosen if i >= len(call.inputs)]:
        raise SpecError(
            f"quantization_index {beyond[0]} of layer {call.layer!r} is out of range: "
            f"it has {len(call.inputs)} input(s), counted from 0."
        )
    return chosen


def agreed(configs: Sequence[Any], key: str, tensor: str) -> Any:
    """Return the one value that the readers of a tensor request, or None.

    Raises:
        SpecError: two readers request different values; a tensor has one quantizer.
    """
    # None means that the reader has no preference.
    values = {getattr(config, key) for config in configs} - {None}
    if len(values) > 1:
        raise SpecError(
            f"The readers of tensor {tensor!r} ask for different values of {key}: "
            f"{sorted(map(str, values))}. "
            "A tensor has one quantizer, so give them the same."
        )
    return values.pop() if values else None
