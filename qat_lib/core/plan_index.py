"""Index of a plan by the parts of a model, with consistency checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qat_lib.core.plan import Consumer, QuantizationPlan, QuantizerEntry
from qat_lib.errors import PlanError
from qat_lib.graph.call_graph import CallGraph, GraphCall


@dataclass(frozen=True, kw_only=True)
class PlanIndex:
    """Entries of a plan, checked against a model.

    Attributes:
        wrapped: names of the layers that get a wrapper.
        reads: entry of the quantizer in front of an input, by call name and input number.
        of_layer: entries of the weights and inner tensors of each layer.
    """

    wrapped: frozenset[str]
    reads: Mapping[tuple[str, int], QuantizerEntry]
    of_layer: Mapping[str, list[QuantizerEntry]]

    @classmethod
    def of(cls, plan: QuantizationPlan, graph: CallGraph) -> PlanIndex:
        """Check a plan against a model and index it.

        Raises:
            PlanError: the plan names a part that the model lacks, or contradicts itself.
        """
        layers = {call.layer for call in graph.first_calls()}
        reads: dict[tuple[str, int], QuantizerEntry] = {}
        of_layer: dict[str, list[QuantizerEntry]] = {}
        quantized: set[str] = set()
        for entry in plan.quantizers:
            if entry.unsigned and entry.kind != "activation":
                raise PlanError(
                    f"The plan makes {entry.name!r} unsigned, which only activations can be."
                )
            if entry.kind != "activation":
                of_layer.setdefault(_owner(entry.tensor, layers), []).append(entry)
                continue
            _check_tensor(entry, graph)
            if entry.tensor in quantized:
                raise PlanError(
                    f"The plan puts two quantizers on the tensor {entry.tensor!r}; a tensor has "
                    "one."
                )
            quantized.add(entry.tensor)
            for consumer in entry.consumers:
                _check_consumer(entry.tensor, consumer, graph)
                reads[consumer.layer, consumer.input] = entry
        # Layers with entries for weights are wrapped even if the plan does not list them.
        wrapped = frozenset(plan.wrapped) | frozenset(of_layer)
        if unknown := wrapped - layers:
            raise PlanError(
                f"The plan names the layer {min(unknown)!r}, which the model does not have."
            )
        return cls(wrapped=wrapped, reads=reads, of_layer=of_layer)

    def arriving(self, graph: CallGraph, call: GraphCall, index: int) -> QuantizerEntry | None:
        """Return the entry of the quantizer in effect at an input of a call.

        The quantizer is on that input or in front of range-preserving layers before it.
        """
        if index not in call.traits.quantized_inputs:
            return None
        while (entry := self.reads.get((call.name, index))) is None:
            call, index = graph.producer(call.inputs[index]), 0
            # A layer that merges or changes values ends the search: the range in front does not
            # apply to it.
            if len(call.inputs) != 1 or not call.traits.preserves_range:
                return None
        return entry


def _owner(tensor: str, layers: Collection[str]) -> str:
    """Return the layer of a weight or inner tensor: the longest name that prefixes the tensor's.

    Modules of converted ONNX graphs have names such as ``/stem/Conv``.
    """
    parts = tensor.split("/")
    # Longest first, because a layer's name may itself contain slashes.
    names = ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
    return next((name for name in names if name in layers), parts[0])


def _check_tensor(entry: QuantizerEntry, graph: CallGraph) -> None:
    if entry.tensor not in graph.order:
        raise PlanError(
            f"The plan names the tensor {entry.tensor!r}, which the model does not have."
        )
    # A quantizer of an earlier plan may keep its name; any other layer may not share it.
    namesake = graph.by_name.get(entry.name)
    if namesake is not None and not namesake.traits.is_quantizer:
        raise PlanError(
            f"The plan calls a quantizer {entry.name!r}, as a layer of the model is called."
        )


def _check_consumer(tensor: str, consumer: Consumer, graph: CallGraph) -> None:
    call = graph.by_name.get(consumer.layer)
    says = f"The plan says that input {consumer.input} of {consumer.layer!r} reads {tensor!r}, but"
    if call is None or consumer.input >= len(call.inputs):
        raise PlanError(f"{says} the model has no such input.")
    if call.inputs[consumer.input] != tensor:
        raise PlanError(f"{says} it reads another tensor, {call.inputs[consumer.input]!r}.")
