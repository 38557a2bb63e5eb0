"""The entries of weights and of tensors inside of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qat_lib.graph.layer_graph import LayerGraph
from qat_lib.plan import Consumer, QuantizerEntry
from qat_lib.planner.agreement import agreed
from qat_lib.planner.decisions import kernels
from qat_lib.quantize_wrappers import REGISTRY
from qat_lib.quantize_wrappers.composite import quantizer_name
from qat_lib.selection import Decision


def composite_entries(graph: LayerGraph, inner: Mapping[str, Decision]) -> Iterator[QuantizerEntry]:
    """Yield one entry for each weight and each tensor inside of composite layers that is quantized.

    Raises:
        SpecError: the readers of an inner tensor ask for different options.
    """
    for layer, composite in graph.composites.items():
        for path, operation in composite.layers.items():
            decision = inner.get(f"{layer}/{path}")
            if decision is not None and decision.config.quantize_weight:
                yield from _weights_of(f"{layer}/{path}", operation, decision)
        for paths in composite.groups:
            decisions: dict[str, Decision] = {}
            for path in paths:
                name = f"{layer}/{path}"
                if name in inner and inner[name].config.quantize_input:
                    decisions[name] = inner[name]
            if decisions:
                yield _inner_tensor(decisions)


def _inner_tensor(decisions: Mapping[str, Decision]) -> QuantizerEntry:
    """Return the entry of a tensor inside of a composite, from the decisions about its readers."""
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


def _weights_of(layer: str, operation: Any, decision: Decision) -> Iterator[QuantizerEntry]:
    config = decision.config
    for kernel, axes in kernels(operation).items():
        yield QuantizerEntry(
            name=quantizer_name(f"{layer}/{kernel}"),
            kind="weight",
            tensor=f"{layer}/{kernel}",
            channel_axes=None if config.per_channel is False else axes,
            num_bits=config.num_bits or 8,
            calibrator="max",
            range_policy=config.weight_range_policy or "current",
            reason=decision.source,
        )


def weight_entries(graph: LayerGraph, decided: Mapping[str, Decision]) -> Iterator[QuantizerEntry]:
    """Yield one entry for each weight that is quantized, and for each tensor inside of a layer."""
    for layer, operation in graph.layers():
        if (decision := decided.get(layer)) is None:
            continue
        config = decision.config
        if config.quantize_weight:
            yield from _weights_of(layer, operation, decision)
        for name in _internal(operation) if config.quantize_input else ():
            yield QuantizerEntry(
                name=f"{layer}_{name}_quantizer",
                kind="internal",
                tensor=f"{layer}/{name}",
                num_bits=config.num_bits or 8,
                calibrator=config.calibrator,
                range_policy=config.range_policy or "ema",
                reason=decision.source,
            )


def _internal(operation: Any) -> Sequence[str]:
    wrapper = REGISTRY.find(type(operation))
    return () if wrapper is None else wrapper.internal_names
