"""TensorRTQDQCase: Q/DQ placement for any topology, by TensorRT's fusion rules.

The rules (TensorRT developer guide, "Explicit Quantization", published engines, and for
LayerNormalization NVIDIA's ModelOpt):

- A residual Add fuses into the convolution of one branch if that branch has no Q/DQ, the others do,
  and all readers of the Add quantize it. The branch is the deepest one that ends in a convolution
  or Dense without another reader.
- Layers without weights (Multiply, Concatenate, a BatchNormalization with no convolution before it,
  average pooling) run in INT8 if all their inputs and all readers of their output are quantized;
  otherwise, their Q/DQ pairs only add kernels.
- Inputs of a Concatenate share one range (the planner ties them).
- LayerNormalization and GroupNormalization compute in float. If such a layer is the only reader of
  a kernel that could write INT8, a Q on its input keeps that kernel, and the residual Add in it, in
  INT8.

Each such layer starts as a candidate and loses its Q/DQ when a reader of its output is not
quantized, until nothing changes. A residual Add in front of a float reader keeps the Q on a
residual that other quantized layers read: without it, the kernel in front would write float, and so
on through the whole stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from qat_lib.core.selection import Selector
from qat_lib.core.spec import QuantizationSpec
from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.custom_qdq_cases.fusion import (
    AFTER_ADD,
    adds_without_broadcast,
    chain_root,
    float_outputs,
    is_addition,
    is_self_gate,
)
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.reading import read_graph


class TensorRTQDQCase(CustomQDQInsertionCase):
    """Place Q/DQ by TensorRT's fusion rules, for any topology.

    Args:
        float_outputs: whether output layers stay in float, with everything behind them: the last
            layers with weights, if no normalization or activation follows. For networks whose
            outputs are numbers, such as the boxes of a detector. Default False.
    """

    def __init__(self, *, float_outputs: bool = False) -> None:
        self.float_outputs = float_outputs

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return entries for residual Adds, gates, Concatenates, average pools and normalizations.

        Normalizations fused into a convolution are left out.
        """
        graph = read_graph(keras_model)
        return _Placement(graph, qspec, float_outputs(graph) if self.float_outputs else {}).spec()


class _Placement:
    """Inputs to quantize, pruned to the largest profitable set.

    All calls of a shared layer have the same placement, because a spec has one entry for the layer.
    """

    def __init__(
        self, graph: CallGraph, qspec: QuantizationSpec, floats: Mapping[str, str]
    ) -> None:
        self.graph, self.floats = graph, dict(floats)
        # Already quantized inputs, by call.
        self.existing: dict[str, frozenset[int]] = {}
        for call in graph.calls:
            every = range(len(call.inputs))
            through = [i for i in every if self.graph.quantizer_on(call.inputs[i]) is not None]
            self.existing[call.name] = frozenset((*through, *call.traits.quantized_inputs))
        # Quantized inputs by call: existing ones, and those of the current candidates.
        self.edges: dict[str, frozenset[int]] = dict(self.existing)
        self.int8: set[str] = set()
        self.calls: dict[str, list[GraphCall]] = {}
        selector = Selector("full", qspec, graph.catalog)
        for name, composite in graph.composites.items():
            # The user's decision about a composite comes before those about its inner layers.
            if not check_is_quantizable_by_layer_name(qspec, name):
                for path in composite.last:
                    self.floats.pop(f"{name}/{path}", None)
        for call in graph.calls:
            self.calls.setdefault(call.layer, []).append(call)
            self._add(call, selector)
        self.candidates: dict[str, tuple[int, ...]] = {}
        # Layers whose placement the last answer depends on.
        self.asked: set[str] = set()
        for layer, calls in self.calls.items():
            if calls[0].traits.is_wrapped or layer in floats:
                continue
            wishes = {self._inputs_to_quantize(call) for call in calls}
            # Calls of a shared layer that need different inputs get no Q/DQ.
            wish = wishes.pop() if len(wishes) == 1 else None
            if wish is not None and check_is_quantizable_by_layer_name(qspec, layer):
                self._set(layer, wish)
        self._prune()

    def _add(self, call: GraphCall, selector: Selector) -> None:
        traits = call.traits
        if traits.is_wrapped:
            has_quantized_weights = traits.existing is not None and traits.existing.weights
            if traits.is_weighted and has_quantized_weights and self.existing[call.name]:
                self.int8.add(call.name)
            return
        decision = None if traits.is_input else selector.decide(call.layer, traits)
        if call.layer in self.floats and (decision is None or decision.source == "default"):
            return
        if (composite := self.graph.composites.get(call.layer)) is not None and decision is None:
            # The planner quantizes a composite's inner layers by default, and with them these
            # inputs.
            for index, paths in composite.inputs.items():
                if not all(f"{call.layer}/{path}" in self.floats for path in paths):
                    self.edges[call.name] |= {index}
        if decision is None or not decision.config.quantize_input:
            return
        chosen = decision.config.inputs
        every = frozenset(range(len(call.inputs)))
        self.edges[call.name] |= every if chosen is None else every.intersection(chosen)
        if decision.config.quantize_weight and traits.is_weighted:
            self.int8.add(call.name)

    def spec(self) -> QuantizationSpec:
        """Return the remaining candidates as a spec, with the pruned average pools switched off."""
        found = QuantizationSpec()
        for layer, reason in self.floats.items():
            # Without calls it is a layer inside a composite.
            if layer not in self.calls or self.calls[layer][0].traits.support is not None:
                found.add(layer, quantize_input=False, quantize_weight=False, reason=reason)
        for layer, indices in self.candidates.items():
            if indices:
                found.add(layer, quantize_weight=False, quantization_index=list(indices))
            # The default table quantizes average pools, so that a missing entry would not exclude
            # them.
            elif "average pool" in self.calls[layer][0].traits.roles:
                found.add(layer, quantize_input=False, quantize_weight=False)
        return found

    def _set(self, layer: str, indices: tuple[int, ...]) -> None:
        for call in self.calls[layer]:
            self.edges[call.name] = self.existing[call.name].union(indices)
        self.candidates[layer] = indices

    def _inputs_to_quantize(self, call: GraphCall) -> tuple[int, ...] | None:
        """Return a candidate's inputs to quantize, or None for other calls."""
        kind = call.traits.kind
        every = tuple(range(len(call.inputs)))
        if is_addition(call) and len(every) > 1:
            return self._residual_inputs(call)
        if kind == "Multiply":
            # x * sigmoid(x) is an activation (SiLU) in the kernel of x, not a gate.
            is_gate = len(every) == 2 and not is_self_gate(self.graph, call)
            return every if is_gate else None
        if call.traits.is_concatenate or call.traits.roles & {"average pool", "normalization"}:
            return every
        if kind == "BatchNormalization":
            # Behind a weighted layer, it folds into the weights and needs no quantizer.
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
            # TensorRT splits a larger sum into several additions with unquantized tensors between.
            return tuple(every) if len(every) == 2 else None
        int8 = {i: root for i, root in ends.items() if root.name in self.int8}
        if not int8:
            return None  # it fuses into a float convolution, in float
        # The deepest branch is computed last, so its kernel can add the others, which exist by
        # then.
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
        """Remove unprofitable candidates until nothing changes.

        Only candidates that depend on a change are examined again.
        """
        open_layers = dict.fromkeys(self.candidates)
        asked_by: dict[str, set[str]] = {}
        while open_layers:
            layer, _ = open_layers.popitem()
            indices = self.candidates[layer]
            self.asked = set()
            kept = tuple(index for index in indices if self._pays_everywhere(layer, index))
            # `_pays` records in self.asked the layers that the answer depends on.
            for name in self.asked:
                asked_by.setdefault(name, set()).add(layer)
            if kept != indices:
                # An Add keeps the inputs that pay; other layers run in INT8 with all of their
                # inputs or not at all.
                self._set(layer, kept if is_addition(self.calls[layer][0]) else ())
                open_layers |= dict.fromkeys(asked_by.get(layer, ()))

    def _is_quantized(self, reader: GraphCall, index: int) -> bool:
        self.asked.add(reader.layer)
        return index in self.edges[reader.name]

    def _pays_everywhere(self, layer: str, index: int) -> bool:
        return all(self._pays(call, index) for call in self.calls[layer])

    def _pays(self, call: GraphCall, index: int) -> bool:
        """Return whether the Q on that input saves more than it costs."""
        tensor = call.inputs[index]
        if "normalization" in call.traits.roles:
            return self._could_be_int8(tensor) and self._all_quantized(tensor)
        if self._all_quantized(self._after_activation(call)):
            return True
        # One input without Q: the Add runs in the kernel of that branch.
        fused = is_addition(call) and len(self.candidates[call.layer]) < len(call.inputs)
        if not fused:
            return False
        # The Q is free if another reader needs it anyway.
        for reader, number in self.graph.consumers(tensor):
            is_other = (reader.name, number) != (call.name, index)
            if is_other and self._is_quantized(reader, number):
                return True
        return False

    def _after_activation(self, call: GraphCall) -> str:
        """Return the output tensor of the call's kernel, behind a fused activation."""
        (tensor,) = call.outputs
        readers = self.graph.consumers(tensor)
        if len(readers) == 1 and readers[0][0].traits.activation in AFTER_ADD:
            return readers[0][0].outputs[0]
        return tensor

    def _could_be_int8(self, tensor: str) -> bool:
        """Return whether the tensor's kernel writes INT8 if all readers quantize it."""
        root = chain_root(self.graph, tensor)
        if root is not None:
            return root.name in self.int8
        # Other kernels: skip the operations that TensorRT computes in INT8 or merges.
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
        """Return whether every reader quantizes the tensor, also behind pools and pads."""
        # The list grows while it is iterated: outputs of range-preserving readers are checked, too.
        tensors = [tensor]
        for current in tensors:
            readers = self.graph.consumers(current)
            if not readers or current in self.graph.outputs:
                return False
            for reader, index in readers:
                if not self._is_quantized(reader, index):
                    if not reader.traits.preserves_range:
                        return False
                    tensors += self.graph.read_outputs(reader)
        return True
