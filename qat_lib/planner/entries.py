"""Plan entries of weights and of tensors inside layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from qat_lib.core.plan import Consumer, QuantizerEntry
from qat_lib.core.plan_entries import quantizer_name
from qat_lib.core.selection import Decision
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.traits import Traits
from qat_lib.planner.wants import agreed


def composite_entries(
    graph: CallGraph, inner: Mapping[str, Decision], *, cpu: str | None = None
) -> Iterator[QuantizerEntry]:
    """Yield entries for quantized weights and tensors inside composite layers.

    Raises:
        SpecError: the readers of an inner tensor request different options.
    """
    for layer, composite in graph.composites.items():
        for path, traits in composite.layers.items():
            decision = inner.get(f"{layer}/{path}")
            if decision is not None and decision.config.quantize_weight:
                yield from _weights_of(f"{layer}/{path}", traits, decision, _pairs(traits, cpu))
        for paths in composite.groups:
            decisions: dict[str, Decision] = {}
            for path in paths:
                name = f"{layer}/{path}"
                if name in inner and inner[name].config.quantize_input:
                    decisions[name] = inner[name]
            if decisions:
                yield _inner_tensor(decisions)


def _inner_tensor(decisions: Mapping[str, Decision]) -> QuantizerEntry:
    """Return the entry of a composite's inner tensor, from the decisions about its readers."""
    # Inner tensors have no name: the first reader identifies them.
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


def _weights_of(
    layer: str, traits: Traits, decision: Decision, pairs: str | None
) -> Iterator[QuantizerEntry]:
    """Yield an entry for each weight of a layer.

    Args:
        layer: name of the layer.
        traits: traits of the layer.
        decision: decision about the layer.
        pairs: ``Support.pairs`` of the layer if the target CPU adds pairs of products in 16 bits,
            else None.
    """
    config = decision.config
    for kernel, axes in traits.weights().items():
        entry = QuantizerEntry(
            name=quantizer_name(f"{layer}/{kernel}"),
            kind="weight",
            tensor=f"{layer}/{kernel}",
            channel_axes=None if config.per_channel is False else axes,
            num_bits=config.weight_num_bits or config.num_bits or 8,
            calibrator="max",
            range_policy=config.weight_range_policy or "current",
            reason=decision.source,
        )
        # A depthwise kernel multiplies one channel, so no two products of different channels are
        # added.
        if pairs is not None and axes is not None and not kernel.startswith("depthwise"):
            entry = _within_16_bits(entry, axes, pairs)
        yield entry


def _within_16_bits(entry: QuantizerEntry, axes: tuple[int, ...], pairs: str) -> QuantizerEntry:
    """Return an entry for a CPU that adds two products of bytes in 16 bits, with saturation.

    Activations reach 255 there (signed ones are shifted by 128), so the sum of two weights of one
    sign may reach 128: 128 * 255 < 2**15. Weights of fewer than 8 bits never exceed that.
    """
    if entry.num_bits < 8:
        return entry
    if pairs == "unknown" or entry.range_policy != "current":
        # The partners or the range may change later; 63 + 63 fits for any partners.
        reason = f"{entry.reason}; 7 bits: pairs of products are added in 16 bits"
        return replace(entry, num_bits=7, reason=reason)
    # Positive axes count from the front and PyTorch's layouts begin with the output channels.
    candidates = range(4) if pairs == "first" else range(-1, -5, -1)
    # Without the per-channel axes: the axis counts the input channels.
    axis = next(axis for axis in candidates if axis not in axes)
    reason = f"{entry.reason}; its range covers sums of two, added in 16 bits"
    return replace(entry, pair_axis=axis, reason=reason)


def _pairs(traits: Traits, cpu: str | None) -> str | None:
    """Return ``Support.pairs`` if the CPU adds products in 16 bits, else None."""
    return traits.support.pairs if cpu == "avx2" and traits.support is not None else None


def _is_reordered(graph: CallGraph, call: GraphCall) -> bool:
    """Return whether a reshape in front of a layer mixes channels with positions.

    The export then sorts the weight rows by the ONNX layout, which changes the neighbours of a row.
    """
    if not call.inputs:
        return False
    producer = graph.producer(call.inputs[0])
    # A weighted layer makes new channels, so an earlier reshape has no effect on this layer's rows.
    while not producer.traits.is_weighted and len(producer.inputs) == 1:
        if producer.traits.kind in ("Flatten", "Reshape", "Permute"):
            return len(graph.shapes.get(producer.inputs[0], ())) > 2
        producer = graph.producer(producer.inputs[0])
    return False


def weight_entries(
    graph: CallGraph, decided: Mapping[str, Decision], *, cpu: str | None = None
) -> Iterator[QuantizerEntry]:
    """Yield entries for quantized weights and tensors inside layers."""
    for call in graph.first_calls():
        layer, support = call.layer, call.traits.support
        if (decision := decided.get(layer)) is None:
            continue
        config = decision.config
        if config.quantize_weight:
            pairs = _pairs(call.traits, cpu)
            if pairs == "last" and _is_reordered(graph, call):
                pairs = "unknown"
            # Once per layer, not per call: the calls of a shared layer share their weights.
            yield from _weights_of(layer, call.traits, decision, pairs)
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
