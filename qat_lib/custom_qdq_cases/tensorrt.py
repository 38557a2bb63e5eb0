"""TensorRTQDQCase: Q/DQ placement for any topology, from the graph and TensorRT's fusion rules.

The rules (TensorRT developer guide, "Explicit Quantization", and published engines):

- A residual Add fuses into the convolution of one branch if that branch has no Q/DQ, the others do, and all readers of
  the Add quantize it. The branch is the deepest one that ends in a convolution or Dense that nothing else reads.
- Layers without weights (Multiply, Concatenate, a BatchNormalization with no convolution before it, average pooling)
  run in INT8 if all their inputs and all readers of their output are quantized; else Q/DQ on them only costs kernels.
- Inputs of a Concatenate share one range (the planner ties them).

So each such layer starts as a candidate, and loses its Q/DQ when a reader of its output is not quantized, until nothing
changes any more.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import keras
from keras import layers

from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.custom_qdq_cases.patterns import ACTIVATIONS, is_convolution
from qat_lib.layer_graph import Call, LayerGraph
from qat_lib.layer_traits import AVERAGE_POOLS, MATMULS, is_identity, is_relu, preserves_range
from qat_lib.selection import Selector
from qat_lib.spec import QuantizationSpec

POINTWISE_OPS = ("Relu", "Relu6", "Silu", "Swish", "Gelu", "Sigmoid", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu")


class TensorRTQDQCase(CustomQDQInsertionCase):
    """Place Q/DQ where TensorRT fuses them, for any topology, by its fusion rules."""

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Name every residual Add, gate, Concatenate, free BatchNormalization and average pooling."""
        return _Placement(LayerGraph(keras_model), qspec).spec()


class _Placement:
    """Which inputs of which calls are quantized, pruned to a fixed point."""

    def __init__(self, graph: LayerGraph, qspec: QuantizationSpec) -> None:
        self.graph = graph
        self.qspec = qspec
        selector = Selector("full", qspec)
        self.edges: set[tuple[str, int]] = set()
        for call in graph.calls:
            decision = None if call.is_input else selector.decide(call.layer, call.operation)
            if decision is not None and decision.config.quantize_input:
                chosen = decision.config.quantization_index
                self.edges |= {(call.name, i) for i in range(len(call.inputs)) if chosen is None or i in chosen}
        self.candidates = {
            call.name: indices
            for call in graph.calls
            if check_is_quantizable_by_layer_name(qspec, call.layer)
            and (indices := self._inputs_to_quantize(call)) is not None
        }
        for name, indices in self.candidates.items():
            self.edges = {edge for edge in self.edges if edge[0] != name} | {(name, i) for i in indices}
        self._prune()

    def spec(self) -> QuantizationSpec:
        found = QuantizationSpec()
        for name, indices in self.candidates.items():
            call = self.graph.by_name[name]
            if name != call.layer:
                continue
            if indices:
                found.add(call.layer, quantize_weight=False, quantization_index=indices)
            elif isinstance(call.operation, AVERAGE_POOLS):
                found.add(call.layer, quantize_input=False, quantize_weight=False)
        return found

    def _inputs_to_quantize(self, call: Call) -> list[int] | None:
        """Return the inputs that a candidate wants quantized; None if the call is no candidate."""
        operation = call.operation
        every = list(range(len(call.inputs)))
        if is_addition(operation) and len(every) > 1:
            return self._residual_inputs(call)
        if _is(operation, layers.Multiply, "Multiply") and len(every) == 2 and not self._is_self_gate(call):
            return every
        if isinstance(operation, layers.Concatenate):
            return every
        if isinstance(operation, layers.BatchNormalization) and self._chain_root(call.inputs[0]) is None:
            return every
        if isinstance(operation, AVERAGE_POOLS):
            return every
        return None

    def _residual_inputs(self, call: Call) -> list[int] | None:
        shapes = [self.graph.shapes[tensor] for tensor in call.inputs]
        if any(shape != shapes[0] for shape in shapes):
            return None
        ends = {i: root for i, t in enumerate(call.inputs) if (root := self._chain_root(t, sole=True)) is not None}
        if not ends:
            return list(range(len(call.inputs)))
        main = max(ends, key=lambda i: (self._depth[ends[i].name], i))
        return [i for i in range(len(call.inputs)) if i != main]

    def _chain_root(self, tensor: str, *, sole: bool = False) -> Call | None:
        """Return the convolution or Dense whose epilogue ends in ``tensor``: BN, activation, scale, dropout after it.

        With ``sole``, nothing else may read any tensor on the way.
        """
        seen: set[str] = set()
        while True:
            if sole and len(self.graph.consumers(tensor)) != 1:
                return None
            call = self.graph.producer(tensor)
            if is_convolution(call) or isinstance(call.operation, MATMULS):
                return call
            operation = call.operation
            once = type(operation).__name__
            is_step = isinstance(operation, (layers.BatchNormalization, *ACTIVATIONS)) or once == "LayerScale"
            if is_identity(operation) and call.inputs:
                tensor = call.inputs[0]
            elif is_step and once not in seen and len(call.inputs) == 1:
                seen.add(once)
                tensor = call.inputs[0]
            else:
                return None

    def _is_self_gate(self, call: Call) -> bool:
        """Whether this is ``x * f(x)`` with pointwise ``f``, which stays in one kernel with what made ``x``."""
        roots = []
        for tensor in call.inputs:
            producer = self.graph.producer(tensor)
            while _is_pointwise(producer) and len(producer.inputs) == 1:
                tensor = producer.inputs[0]
                producer = self.graph.producer(tensor)
            roots.append(tensor)
        return roots[0] == roots[1]

    @cached_property
    def _depth(self) -> dict[str, int]:
        """Longest distance of each call from the model's inputs."""
        depth: dict[str, int] = {}
        for call in self.graph.calls:
            depth[call.name] = 1 + max((depth[self.graph.producer(t).name] for t in call.inputs), default=-1)
        return depth

    def _prune(self) -> None:
        changed = True
        while changed:
            changed = False
            for name, indices in self.candidates.items():
                if indices and not self._is_read_quantized(self.graph.by_name[name]):
                    self.candidates[name] = []
                    self.edges -= {(name, i) for i in indices}
                    changed = True

    def _is_read_quantized(self, call: Call) -> bool:
        """Whether every reader of the call's output, after an activation of its own, reads it quantized."""
        (tensor,) = call.outputs
        readers = self.graph.consumers(tensor)
        if (
            len(readers) == 1
            and isinstance(readers[0][0].operation, ACTIVATIONS)
            and not is_relu(readers[0][0].operation)
        ):
            (tensor,) = readers[0][0].outputs
        return self._all_quantized(tensor)

    def _all_quantized(self, tensor: str) -> bool:
        readers = self.graph.consumers(tensor)
        if not readers or tensor in self.graph.outputs:
            return False
        return all(
            (reader.name, index) in self.edges
            or (preserves_range(reader.operation) and self._all_quantized(reader.outputs[0]))
            for reader, index in readers
        )


def is_addition(operation: Any) -> bool:
    """Whether the operation adds tensors: an Add layer, or ``x + y``."""
    return _is(operation, layers.Add, "Add")


def _is(operation: Any, layer_class: type, operator: str) -> bool:
    if isinstance(operation, keras.layers.Layer):
        return isinstance(operation, layer_class)
    return type(operation).__name__ == operator


def _is_pointwise(call: Call) -> bool:
    return isinstance(call.operation, ACTIVATIONS) or type(call.operation).__name__ in POINTWISE_OPS
