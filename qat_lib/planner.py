"""From a model, a spec and custom cases to a QuantizationPlan, without touching any of them.

A quantizer belongs to a tensor: every reader that wants the tensor quantized shares it; a tensor that comes out of a
range-preserving layer keeps the quantizer of what went in; tensors that meet in a quantized Concatenate share a range.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import keras

from qat_lib.custom_qdq_cases.fusion import chain_root
from qat_lib.errors import SpecError
from qat_lib.layer_graph import Call, LayerGraph
from qat_lib.layer_traits import is_identity, preserves_range
from qat_lib.plan import Consumer, QuantizationPlan, QuantizerEntry, SkippedLayer
from qat_lib.quantize_wrappers import REGISTRY, WeightedBaseQuantizeWrapper
from qat_lib.quantizers import TensorQuantizer
from qat_lib.selection import Decision, Selector, warn_unknown_names
from qat_lib.spec import QuantizationSpec

MODES = ("full", "partial")


def plan_quantization(
    model: Any,
    quantization_mode: str = "full",
    quantization_spec: QuantizationSpec | None = None,
    custom_qdq_cases: Sequence[Any] | None = None,
) -> QuantizationPlan:
    """Decide which tensors and weights of a model get a quantizer, and why. Nothing is changed.

    Args:
        model: a Functional or Sequential Keras model, nested ones included.
        quantization_mode: ``"full"`` (default): all supported layers by the default table, as far as the spec and the
            cases say nothing else; ``"partial"``: only what the spec and the cases name.
        quantization_spec: what the user asks for.
        custom_qdq_cases: objects with ``case(keras_model, qspec) -> QuantizationSpec``; a later one wins.

    Returns:
        The plan, for :func:`qat_lib.apply_plan`.

    Raises:
        SpecError: the mode, the spec or a case is wrong.
        UnsupportedModelError: the model is subclassed or not built.
    """
    cases = list(custom_qdq_cases or ())
    if quantization_mode not in MODES:
        raise SpecError(f"quantization_mode must be 'full' or 'partial'. Received: {quantization_mode!r}.")
    if quantization_spec is not None and not isinstance(quantization_spec, QuantizationSpec):
        raise SpecError(f"quantization_spec must be a QuantizationSpec. Received: {type(quantization_spec).__name__}.")
    if quantization_mode == "partial" and not cases and not (quantization_spec and quantization_spec.layers):
        raise SpecError("Partial mode quantizes only what a spec or a case names: give at least one of them.")
    graph = LayerGraph(model)
    names = [name for name, _ in graph.layers()]
    warn_unknown_names(quantization_spec, names, model.name)
    specs = [(type(case).__name__, case_spec(case, model, quantization_spec)) for case in cases]
    selector = Selector(quantization_mode, quantization_spec, specs)
    return _Planner(graph, selector, quantization_mode).plan()


def case_spec(case: Any, model: Any, spec: QuantizationSpec | None) -> QuantizationSpec:
    """Return what a custom Q/DQ case asks for; it gets a copy of the user's spec.

    Raises:
        SpecError: the case has no ``case`` method or returns no QuantizationSpec.
    """
    if not callable(getattr(case, "case", None)):
        raise SpecError(f"A custom Q/DQ case needs a method case(keras_model, qspec). Received: {case!r}.")
    result = case.case(model, copy.deepcopy(spec) if spec is not None else QuantizationSpec())
    if not isinstance(result, QuantizationSpec):
        raise SpecError(
            f"{type(case).__name__}.case must return a QuantizationSpec, empty if there is nothing to change. "
            f"Received: {type(result).__name__}."
        )
    return result


class _Planner:
    """The state of one planning: what was decided for each layer, and who wants which tensor quantized."""

    def __init__(self, graph: LayerGraph, selector: Selector, mode: str) -> None:
        self.graph = graph
        self.mode = mode
        self.selector = selector
        self.decisions: dict[str, Decision] = {}
        self.skipped: list[SkippedLayer] = []
        self.wanted: dict[str, list[tuple[Consumer, Decision]]] = {}
        self.taken = {name for name, _ in graph.layers()}

    def plan(self) -> QuantizationPlan:
        for layer, operation in self.graph.layers():
            self._decide(layer, operation)
        for call in self.graph.calls:
            if call.layer in self.decisions:
                self._want_inputs(call, self.decisions[call.layer])
        groups = self._tie()
        quantizers = [*self._activations(groups), *self._weights()]
        return QuantizationPlan(
            model=self.graph.model.name,
            mode=self.mode,
            quantizers=tuple(quantizers),
            skipped=tuple(self.skipped),
            wrapped=tuple(layer for layer, _ in self.graph.layers() if layer in self.decisions),
        )

    def _decide(self, layer: str, operation: Any) -> None:
        if isinstance(operation, keras.layers.InputLayer):
            return
        decision = self.selector.decide(layer, operation)
        wrapper = REGISTRY.find(type(operation))
        if decision is None:
            reason, detail = self._why_not(layer, operation, wrapper)
        elif wrapper is None and isinstance(operation, keras.layers.Layer):
            name = type(operation).__name__
            reason, detail = "unsupported", f"no wrapper for {name}; define {name}QuantizeWrapper to add one"
        elif not decision.config.quantize_input and not (decision.config.quantize_weight and _kernels(operation)):
            reason, detail = "excluded", decision.source
        else:
            self.decisions[layer] = decision
            return
        self.skipped.append(
            SkippedLayer(layer=layer, class_name=type(operation).__name__, reason=reason, detail=detail)
        )

    def _why_not(self, layer: str, operation: Any, wrapper: Any) -> tuple[str, str]:
        if preserves_range(operation):
            return "range-preserving", "keeps the quantizer of its input"
        if (kernel := self._kernel(self.graph.by_name[layer])) is not None:
            return "fused", f"runs in the kernel of {kernel}"
        if wrapper is None:
            return "not quantizable", "runs in float"
        if self.mode == "partial":
            return "not named", "partial mode quantizes only what the spec or a case names"
        return "off by default", "name it in a spec or a case to quantize it"

    def _kernel(self, call: Call) -> str | None:
        """Return the quantized layer whose kernel takes the call in, such as the convolution before a normalization."""
        if len(call.inputs) != 1 or len(call.outputs) != 1:
            return None
        root = chain_root(self.graph, call.outputs[0])
        alone = chain_root(self.graph, call.inputs[0], sole=True)
        return root.layer if root is not None and root is alone and root.layer in self.decisions else None

    def _want_inputs(self, call: Call, decision: Decision) -> None:
        if not decision.config.quantize_input:
            return
        chosen = decision.config.quantization_index
        if chosen is not None and (beyond := [i for i in chosen if i >= len(call.inputs)]):
            raise SpecError(
                f"quantization_index {beyond[0]} of layer {call.layer!r} is out of range: "
                f"it has {len(call.inputs)} input(s), counted from 0."
            )
        for index, tensor in enumerate(call.inputs):
            if "float" not in self.graph.dtypes[tensor] or self._is_quantized(tensor):
                continue
            if chosen is None or index in chosen:
                self.wanted.setdefault(tensor, []).append((Consumer(layer=call.name, input=index), decision))

    def _is_quantized(self, tensor: str) -> bool:
        """Whether the model has a TensorQuantizer on the tensor already, put there by hand or by an earlier plan."""
        call = self.graph.producer(tensor)
        while len(call.inputs) == 1 and preserves_range(call.operation):
            call = self.graph.producer(call.inputs[0])
        return isinstance(call.operation, TensorQuantizer)

    def _source(self, tensor: str) -> str:
        """Return the tensor before any layers that are the identity at inference: both are one tensor there."""
        call = self.graph.producer(tensor)
        while len(call.inputs) == 1 and is_identity(call.operation):
            tensor = call.inputs[0]
            call = self.graph.producer(tensor)
        return tensor

    @cached_property
    def _sources(self) -> set[str]:
        return {self._source(tensor) for tensor in self.wanted}

    def _root(self, tensor: str) -> str:
        """Return the tensor whose quantizer serves ``tensor``: its source, or one further up, quantized anyway."""
        best = current = self._source(tensor)
        while True:
            call = self.graph.producer(current)
            if len(call.inputs) != 1 or len(call.outputs) != 1 or not preserves_range(call.operation):
                return best
            current = call.inputs[0]
            if current in self._sources or (len(self.graph.consumers(current)) > 1 and self._all_wanted(current)):
                best = current

    def _all_wanted(self, tensor: str) -> bool:
        """Whether every reader wants the tensor quantized, those behind pools, pads and the like included."""
        readers = self.graph.consumers(tensor)
        wanted = {(consumer.layer, consumer.input) for consumer, _ in self.wanted.get(tensor, ())}
        return bool(readers) and all(
            (call.name, index) in wanted or (preserves_range(call.operation) and self._all_wanted(call.outputs[0]))
            for call, index in readers
        )

    def _tie(self) -> dict[str, str]:
        """Return, for each root tensor in a tied group, the group's name: that of its first tensor."""
        parent: dict[str, str] = {}

        def find(tensor: str) -> str:
            while parent.get(tensor, tensor) != tensor:
                tensor = parent[tensor]
            return tensor

        order = {tensor: i for i, call in enumerate(self.graph.calls) for tensor in call.outputs}
        for call in self.graph.calls:
            if not isinstance(call.operation, keras.layers.Concatenate):
                continue
            readers = {(c.layer, c.input) for tensor in call.inputs for c, _ in self.wanted.get(tensor, ())}
            if any((call.name, i) not in readers for i in range(len(call.inputs))):
                continue
            members = [self._root(tensor) for tensor in call.inputs]
            members += [t for t in call.outputs if t in self.wanted]
            roots = sorted({find(m) for m in members}, key=lambda t: order[t])
            for member in roots:
                parent[member] = roots[0]
            for member in members:
                parent.setdefault(member, roots[0])
        return {tensor: find(tensor) for tensor in parent}

    def _activations(self, groups: dict[str, str]) -> list[QuantizerEntry]:
        readers: dict[str, dict[tuple[str, int], tuple[Consumer, Decision, str]]] = {}
        for tensor, wants in self.wanted.items():
            root = self._root(tensor)
            found = readers.setdefault(root, {})
            for consumer, decision in self._path(root, tensor, wants):
                found.setdefault((consumer.layer, consumer.input), (consumer, decision, tensor))
        order = {tensor: i for i, call in enumerate(self.graph.calls) for tensor in call.outputs}
        names: dict[str, str] = {}
        entries = []
        for root in sorted(readers, key=lambda t: order[t]):
            group = groups.get(root)
            name = names.get(group or root) or self._name(root)
            names[group or root] = name
            configs = [d.config for _, d, _ in readers[root].values()]
            sources = dict.fromkeys(_reader_reason(c, d) for c, d, _ in readers[root].values())
            entries.append(
                QuantizerEntry(
                    name=name,
                    kind="activation",
                    tensor=root,
                    consumers=tuple(c for c, _, _ in readers[root].values()),
                    group=None if group is None else f"{group} (Concatenate)",
                    num_bits=_agreed(configs, "num_bits", root) or 8,
                    calibrator=_agreed(configs, "calibrator", root),
                    range_policy=_agreed(configs, "range_policy", root) or "ema",
                    reason="; ".join(sources),
                )
            )
        return entries

    def _path(self, root: str, tensor: str, wants: list[tuple[Consumer, Decision]]) -> list[tuple[Consumer, Decision]]:
        """Return who must read ``root`` quantized so that ``tensor`` arrives quantized at those who want it."""
        if tensor == root:
            return wants
        current = tensor
        while True:
            call = self.graph.producer(current)
            current = call.inputs[0]
            if current == root:
                return [(Consumer(layer=call.name, input=0), wants[0][1])]

    def _name(self, tensor: str) -> str:
        call, _, index = tensor.rpartition(":")
        base = call.replace("@", "_call") + (f"_{index}" if index != "0" else "")
        name = f"{base}_quantizer"
        suffix = 1
        while name in self.taken:
            name, suffix = f"{base}_quantizer_{suffix}", suffix + 1
        self.taken.add(name)
        return name

    def _weights(self) -> list[QuantizerEntry]:
        entries = []
        for layer, operation in self.graph.layers():
            decision = self.decisions.get(layer)
            if decision is None:
                continue
            config = decision.config
            if config.quantize_weight:
                for kernel, axes in _kernels(operation).items():
                    entries.append(
                        QuantizerEntry(
                            name=f"{layer}_{kernel}_quantizer",
                            kind="weight",
                            tensor=f"{layer}/{kernel}",
                            channel_axes=None if config.per_channel is False else axes,
                            num_bits=config.num_bits or 8,
                            calibrator="max",
                            range_policy="current",
                            reason=decision.source,
                        )
                    )
            if config.quantize_input:
                for name in _internal(operation):
                    entries.append(
                        QuantizerEntry(
                            name=f"{layer}_{name}_quantizer",
                            kind="internal",
                            tensor=f"{layer}/{name}",
                            num_bits=config.num_bits or 8,
                            calibrator=config.calibrator,
                            range_policy=config.range_policy or "ema",
                            reason=decision.source,
                        )
                    )
        return entries


def _kernels(operation: Any) -> dict[str, tuple[int, ...] | None]:
    """Return the weights of a layer that can be quantized, with the axes that keep a range."""
    wrapper = REGISTRY.find(type(operation))
    if wrapper is None or not issubclass(wrapper, WeightedBaseQuantizeWrapper):
        return {}
    found: dict[str, tuple[int, ...] | None] = wrapper(operation).planned_weights()
    return found


def _internal(operation: Any) -> list[str]:
    wrapper = REGISTRY.find(type(operation))
    return [] if wrapper is None else list(wrapper.internal_names)


def _reader_reason(consumer: Consumer, decision: Decision) -> str:
    return f"input {consumer.input} of {consumer.layer} ({decision.source})"


def _agreed(configs: Sequence[Any], key: str, tensor: str) -> Any:
    """Return the one value that the readers of a tensor ask for.

    Raises:
        SpecError: two readers ask for different values, but a tensor has one quantizer.
    """
    values = {getattr(config, key) for config in configs} - {None}
    if len(values) > 1:
        raise SpecError(
            f"The readers of tensor {tensor!r} ask for different values of {key}: {sorted(map(str, values))}. "
            "A tensor has one quantizer, so give them the same."
        )
    return values.pop() if values else None
