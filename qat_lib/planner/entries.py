"""The entries of weights and of tensors inside of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qat_lib.graph.call_graph import CallGraph
from qat_lib.graph.traits import Traits
from qat_lib.plan import Consumer, QuantizerEntry
from qat_lib.plan_entries import quantizer_name
from qat_lib.planner.agreement import agreed
from qat_lib.selection import Decision


def composite_entries(graph: CallGraph, inner: Mapping[str, Decision]) -> Iterator[QuantizerEntry]:
    """Yield entries for quantized weights and tensors inside composite layers.

    Raises:
        SpecError: the readers of an inner tensor ask for different options.
    """
    for layer, composite in graph.composites.items():
        for path, traits in composite.layers.items():
            decision = inner.get(f"{layer}/{path}")
            if decision is not None and decision.config.quantize_weight:
                yield from _weights_of(f"{layer}/{path}", traits, decision)
        for paths in composite.groups:
            decisions: dict[str, Decision] = {}
            for path in paths:
                name = f"{layer}/{path}"
                if name in inner and inner[name].config.quantize_input:
                    decisions[name] = inner[name]
            if decisions:
                yield _inner_tensor(decisions)


def _inner_tensor(decisions: Mapping[str, Decision]) -> QuantizerEntry:
    """Return the entry of a composite's inner tensor.

    It follows from the decisions about the tensor's readers.
    """
    tensor = f"{next(iter(decisions))}/input"
    configs = [decision.config for decision in decisions.values()]
    reasons = [f"input 0 of {name} ({decision.source})" for name, decision in decisions.items()]
    return QuantizerEntry(
        name=quantizer_name(tensor),
        kind="internal",
        tensor=tensor,
        consumers=tuple(Consumer(layer=name, input=0) for name in decisions),
        num_bits=agreed(configs, "num_bits", tensor) or 8,
        calibrator=agreed(configs, "calibrator", tensor),
        range_policy=agreed(configs, "range_policy", tensor) or "ema",
        reason="; ".join(reasons),
    )


def _weights_of(layer: str, traits: Traits, decision: Decision) -> Iterator[QuantizerEntry]:
    config = decision.config
    for kernel, axes in traits.weights().items():
        yield QuantizerEntry(
            name=quantizer_name(f"{layer}/{kernel}"),
            kind="weight",
            tensor=f"{layer}/{kernel}",
            channel_axes=None if config.per_channel is False else axes,
            num_bits=config.weight_num_bits or config.num_bits or 8,
            calibrator="max",
            range_policy=config.weight_range_policy or "current",
            reason=decision.source,
        )


def weight_entries(graph: CallGraph, decided: Mapping[str, Decision]) -> Iterator[QuantizerEntry]:
    """Yield entries for quantized weights and tensors inside layers."""
    for call in graph.first_calls():
        layer, support = call.layer, call.traits.support
        if (decision := decided.get(layer)) is None:
            continue
        config = decision.config
        if config.quantize_weight:
            yield from _weights_of(layer, call.traits, decision)
        if support is None or not config.quantize_input:
            continue
        for name in support.internal:
            yield QuantizerEntry(
                name=f"{layer}_{name}_quantizer",
                kind="internal",
                tensor=f"{layer}/{name}",
                num_bits=config.num_bits or 8,
                calibrator=config.calibrator,
                range_policy=config.range_policy or "ema",
                reason=decision.source,
            )
