"""TensorRTQDQCase: Q/DQ placement for any topology, by TensorRT's fusion rules.

The rules (TensorRT developer guide, "Explicit Quantization", published engines, and for
LayerNormalization NVIDIA's ModelOpt):

- A residual Add fuses into the convolution of one branch if that branch has no Q/DQ, the others do,
  and all readers of the Add quantize it. The branch is the deepest one that ends in a convolution
  or Dense that nothing else reads.
- Layers without weights (Multiply, Concatenate, a BatchNormalization with no convolution before it,
  average pooling) run in INT8 if all their inputs and all readers of their output are quantized;
  else Q/DQ on them only costs kernels.
- Inputs of a Concatenate share one range (the planner ties them).
- LayerNormalization and GroupNormalization compute in float, but where a kernel could write INT8 if
  only they read it, a Q on their input keeps that kernel, and the residual Add in it, in INT8.

So each such layer starts as a candidate, and loses its Q/DQ when a reader of its output is not
quantized, until nothing changes any more. A residual Add in front of a float reader keeps the Q on
a residual that others read quantized as well: without it the kernel in front would write float, and
so on through the whole stage.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from qat_lib.core.selection import Selector
from qat_lib.core.spec import QuantizationSpec
from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.custom_qdq_cases.fusion import (
    AFTER_ADD,
    adds_without_broadcast,
    chain_root,
    is_addition,
    is_self_gate,
)
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.reading import read_graph
from qat_lib.graph.traits import Traits


class TensorRTQDQCase(CustomQDQInsertionCase):
    """Place Q/DQ by TensorRT's fusion rules, for any topology."""

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Name each residual Add, gate, Concatenate, average pooling and free normalization."""
        return _Placement(read_graph(keras_model), qspec).spec()


class _Placement:
    """Inputs to quantize, pruned to the greatest set where each pays.

    A shared layer has one placement for all its calls, as it has one entry in a spec.
    """

    def __init__(self, graph: CallGraph, qspec: QuantizationSpec) -> None:
        self.graph = graph
        self.existing: dict[str, frozenset[int]] = {}
        """Inputs that the model quantizes already, by call."""
        for call in graph.calls:
            self.existing[call.name] = self._quantized_already(call)
        self.edges: dict[str, frozenset[int]] = dict(self.existing)
        self.int8: set[str] = set()
        self.calls: dict[str, list[GraphCall]] = {}
        selector = Selector("full", qspec, graph.catalog)
        for call in graph.calls:
            self.calls.setdefault(call.layer, []).append(call)
            self._add(call, selector)
        self.candidates: dict[str, tuple[int, ...]] = {}
        self.asked: set[str] = set()
        """Layers whose placement the last question was answered by."""
        for layer, calls in self.calls.items():
            if calls[0].traits.is_wrapped:
                continue
            wishes = {self._inputs_to_quantize(call) for call in calls}
            wish = wishes.pop() if len(wishes) == 1 else None
            if wish is not None and check_is_quantizable_by_layer_name(qspec, layer):
                self._set(layer, wish)
        self._prune()

    def _quantized_already(self, call: GraphCall) -> frozenset[int]:
        every = range(len(call.inputs))
        through = [i for i in every if self.graph.quantizer_on(call.inputs[i]) is not None]
        return frozenset((*through, *call.traits.quantized_inputs))

    def _add(self, call: GraphCall, selector: Selector) -> None:
        traits = call.traits
        if traits.is_wrapped:
            has_quantized_weights = traits.existing is not None and traits.existing.weights
            if traits.is_weighted and has_quantized_weights and self.existing[call.name]:
                self.int8.add(call.name)
            return
        decision = None if traits.is_input else selector.decide(call.layer, traits)
        if (composite := self.graph.composites.get(call.layer)) is not None and decision is None:
            self.edges[call.name] |= composite.inputs.keys()
        if decision is None or not decision.config.quantize_input:
            return
        chosen = decision.config.inputs
        every = frozenset(range(len(call.inputs)))
        self.edges[call.name] |= every if chosen is None else every.intersection(chosen)
        if decision.config.quantize_weight and traits.is_weighted:
            self.int8.add(call.name)

    def spec(self) -> QuantizationSpec:
        """Return the remaining candidates as a spec.

        Average poolings that do not remain are switched off.
        """
        found = QuantizationSpec()
        for layer, indices in self.candidates.items():
            if indices:
                found.add(layer, quantize_weight=False, quantization_index=list(indices))
            elif "average pool" in self.calls[layer][0].traits.roles:
                found.add(layer, quantize_input=False, quantize_weight=False)
        return found

    def _set(self, layer: str, indices: tuple[int, ...]) -> None:
        for call in self.calls[layer]:
            self.edges[call.name] = self.existing[call.name].union(indices)
        self.candidates[layer] = indices

    def _inputs_to_quantize(self, call: GraphCall) -> tuple[int, ...] | None:
        """Return a candidate's inputs to quantize; None for other calls."""
        kind = call.traits.kind
        every = tuple(range(len(call.inputs)))
        if is_addition(call) and len(every) > 1:
            return self._residual_inputs(call)
        if kind == "Multiply":
            is_gate = len(every) == 2 and not is_self_gate(self.graph, call)
            return every if is_gate else None
        if _is_concatenate(call.traits) or call.traits.roles & {"average pool", "normalization"}:
            return every
        if kind == "BatchNormalization":
            root = chain_root(self.graph, call.inputs[0], sole=True)
            return every if root is None else None
        return None

    def _residual_inputs(self, call: GraphCall) -> tuple[int, ...] | None:
        shapes = [self.graph.shapes.get(tensor) for tensor in call.inputs]
        if not adds_without_broadcast([shape for shape in shapes if shape is not None]):
            return None
        every = range(len(call.inputs))
        ends: dict[int, GraphCall] = {}
        for index, tensor in enumerate(call.inputs):
            root = chain_root(self.graph, tensor, sole=True)
            if root is not None:
                ends[index] = root
        if not ends:
            # More than two become several additions, with tensors between them that nothing
            # quantizes.
            return tuple(every) if len(every) == 2 else None
        int8 = {i: root for i, root in ends.items() if root.name in self.int8}
        if not int8:
            return None  # it fuses into a float convolution, in float
        main = max(int8, key=lambda i: (self._depth[int8[i].name], i))
        return tuple(i for i in every if i != main)

    @cached_property
    def _depth(self) -> dict[str, int]:
        """Longest distance of each call from the model's inputs."""
        depth: dict[str, int] = {}
        for call in self.graph.calls:
            depth[call.name] = 1 + max(
                (depth[self.graph.producer(t).name] for t in call.inputs), default=-1
            )
        return depth

    def _prune(self) -> None:
        """Remove what does not pay, until nothing changes.

        Only what a change touches is looked at again.
        """
        open_layers = dict.fromkeys(self.candidates)
        asked_by: dict[str, set[str]] = {}
        while open_layers:
            layer, _ = open_layers.popitem()
            indices = self.candidates[layer]
            self.asked = set()
            kept = tuple(index for index in indices if self._pays_everywhere(layer, index))
            for name in self.asked:
                asked_by.setdefault(name, set()).add(layer)
            if kept != indices:
                self._set(layer, kept if is_addition(self.calls[layer][0]) else ())
                open_layers |= dict.fromkeys(asked_by.get(layer, ()))

    def _is_quantized(self, reader: GraphCall, index: int) -> bool:
        self.asked.add(reader.layer)
        return index in self.edges[reader.name]

    def _pays_everywhere(self, layer: str, index: int) -> bool:
        return all(self._pays(call, index) for call in self.calls[layer])

    def _pays(self, call: GraphCall, index: int) -> bool:
        """Whether the Q on that input still saves more than it costs."""
        tensor = call.inputs[index]
        if "normalization" in call.traits.roles:
            return self._could_be_int8(tensor) and self._all_quantized(tensor)
        if self._all_quantized(self._after_activation(call)):
            return True
        fused = is_addition(call) and len(self.candidates[call.layer]) < len(call.inputs)
        if not fused:
            return False
        for reader, number in self.graph.consumers(tensor):
            is_other = (reader.name, number) != (call.name, index)
            if is_other and self._is_quantized(reader, number):
                return True
        return False

    def _after_activation(self, call: GraphCall) -> str:
        """Return the kernel's output tensor, behind an activation that it fuses."""
        (tensor,) = call.outputs
        readers = self.graph.consumers(tensor)
        if len(readers) == 1 and readers[0][0].traits.activation in AFTER_ADD:
            return readers[0][0].outputs[0]
        return tensor

    def _could_be_int8(self, tensor: str) -> bool:
        """Whether the tensor's kernel writes INT8 if all readers want it."""
        root = chain_root(self.graph, tensor)
        if root is not None:
            return root.name in self.int8
        call = self.graph.producer(tensor)
        while call.inputs and (
            call.traits.is_identity
            or call.traits.preserves_range
            or call.traits.activation in AFTER_ADD
        ):
            call = self.graph.producer(call.inputs[0])
        self.asked.add(call.layer)
        if call.traits.is_wrapped and not call.traits.is_weighted:
            return bool(self.existing[call.name])
        is_normalization = "normalization" in call.traits.roles
        return not is_normalization and bool(self.candidates.get(call.layer))

    def _all_quantized(self, tensor: str) -> bool:
        """Whether every reader quantizes the tensor, also behind pools and pads."""
        tensors = [tensor]
        for current in tensors:
            readers = self.graph.consumers(current)
            if not readers or current in self.graph.outputs:
                return False
            for reader, index in readers:
                if not self._is_quantized(reader, index):
                    if not reader.traits.preserves_range:
                        return False
                    tensors.append(reader.outputs[0])
        return True


def _is_concatenate(traits: Traits) -> bool:
    return traits.kind == "Concatenate" and traits.support is not None
