"""The entries of a plan: one for each quantized tensor, weight and inner tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from qat_lib.errors import SpecError
from qat_lib.layer_graph import Call, LayerGraph
from qat_lib.plan import Consumer, QuantizerEntry
from qat_lib.planner.decisions import kernels
from qat_lib.planner.maxima import maximum_behind
from qat_lib.planner.signs import non_negative_tensors
from qat_lib.planner.ties import tied_groups
from qat_lib.planner.wants import Wants
from qat_lib.quantize_wrappers import REGISTRY
from qat_lib.quantize_wrappers.composite import quantizer_name
from qat_lib.quantizers import TensorQuantizer
from qat_lib.selection import Decision
from qat_lib.spec import LayerConfig

_DEFAULTS = LayerConfig(name="default", num_bits=8, range_policy="ema")


def activation_entries(
    wants: Wants, *, unsigned: bool = False, taken: Collection[str] = ()
) -> Iterator[QuantizerEntry]:
    """Yield one entry for each tensor with a quantizer, in the order of the model.

    Args:
        wants: who wants which tensor quantized.
        unsigned: whether tensors that are never negative get unsigned quantizers, a tied group
            where all of its are.
        taken: names that no quantizer may get, beside those of the layers.

    Raises:
        SpecError: the readers of a tensor ask for different options.
    """
    groups = tied_groups(wants)
    readers: dict[str, dict[Consumer, Decision | None]] = {}
    there: dict[str, Call] = {}
    for tensor in wants.readers:
        root = wants.root(tensor)
        for consumer, decision in wants.path(root, tensor):
            found = readers.setdefault(root, {})
            found[consumer] = found.get(consumer) or decision
        for consumer, _ in wants.readers[tensor]:
            call = wants.graph.by_name[consumer.layer]
            if isinstance(call.operation, TensorQuantizer):
                there.setdefault(groups.get(root, root), call)
    order = {tensor: i for i, call in enumerate(wants.graph.calls) for tensor in call.outputs}
    changed = {groups.get(root, root) for root, found in readers.items() if any(found.values())}
    non_negative = non_negative_tensors(wants.graph)
    signed = {groups.get(root, root) for root in readers if root not in non_negative}
    maxima: dict[str, str] = {}
    for root, found in readers.items():
        if (maximum := maximum_behind(wants.graph, found)) is not None:
            maxima.setdefault(groups.get(root, root), maximum)
    names: dict[str, str] = {}
    used = {name for name, _ in wants.graph.layers()} | set(taken)
    for root in sorted(readers, key=lambda t: order[t]):
        key = groups.get(root, root)
        if key not in changed:  # nothing but a quantizer of the model's own, which stays
            continue
        kept = there.get(key)
        if key not in names:
            names[key] = kept.layer if kept is not None else _free_name(root, used)
        options: Any = kept.operation if kept is not None else _DEFAULTS
        decisions = {c: d for c, d in readers[root].items() if d is not None}
        configs = [decision.config for decision in decisions.values()]
        reasons = dict.fromkeys(
            f"input {c.input} of {c.layer} ({d.source})" for c, d in decisions.items()
        )
        # A quantizer that is there keeps its sign, unless it shall serve another tensor, too, which
        # may be negative.
        asked = unsigned if kept is None else kept.operation.unsigned
        from_zero = asked and (key not in signed or (kept is not None and root not in groups))
        notes = ["never negative: unsigned"] if from_zero else []
        calibrator = _agreed(configs, "calibrator", root) or options.calibrator
        if calibrator is None and key in maxima:
            calibrator = "max"
            notes.append(f"{maxima[key]} takes its maximum: not clipped")
        yield QuantizerEntry(
            name=names[key],
            kind="activation",
            tensor=root,
            consumers=tuple(readers[root]),
            group=f"{key} (Concatenate)" if root in groups else None,
            num_bits=_agreed(configs, "num_bits", root) or options.num_bits,
            unsigned=from_zero,
            calibrator=calibrator,
            range_policy=_agreed(configs, "range_policy", root) or options.range_policy,
            reason="; ".join([*reasons, *notes]) or "quantized already",
        )


def composite_entries(graph: LayerGraph, inner: Mapping[str, Decision]) -> Iterator[QuantizerEntry]:
    """Yield one entry for each weight and each tensor inside of composite layers that is quantized.

    Raises:
        SpecError: the readers of an inner tensor ask for different options.
    """
    for layer, composite in graph.composites.items():
        for path, operation in composite.layers.items():
            if (
                decision := inner.get(f"{layer}/{path}")
            ) is not None and decision.config.quantize_weight:
                yield from _weights_of(f"{layer}/{path}", operation, decision)
        for paths in composite.groups:
            readers = {
                path: inner[f"{layer}/{path}"] for path in paths if f"{layer}/{path}" in inner
            }
            decisions = {path: d for path, d in readers.items() if d.config.quantize_input}
            if not decisions:
                continue
            tensor = f"{layer}/{next(iter(decisions))}/input"
            configs = [decision.config for decision in decisions.values()]
            yield QuantizerEntry(
                name=quantizer_name(tensor),
                kind="internal",
                tensor=tensor,
                consumers=tuple(Consumer(layer=f"{layer}/{path}", input=0) for path in decisions),
                num_bits=_agreed(configs, "num_bits", tensor) or 8,
                calibrator=_agreed(configs, "calibrator", tensor),
                range_policy=_agreed(configs, "range_policy", tensor) or "ema",
                reason="; ".join(
                    f"input 0 of {layer}/{path} ({d.source})" for path, d in decisions.items()
                ),
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


def _free_name(tensor: str, taken: set[str]) -> str:
    """Return a quantizer's name, made of its tensor's, that is not ``taken``, and take it."""
    call, _, index = tensor.rpartition(":")
    base = call.replace("@", "_call") + (f"_{index}" if index != "0" else "")
    name = f"{base}_quantizer"
    suffix = 1
    while name in taken:
        name, suffix = f"{base}_quantizer_{suffix}", suffix + 1
    taken.add(name)
    return name


def _agreed(configs: Sequence[Any], key: str, tensor: str) -> Any:
    """Return the one value that the readers of a tensor ask for.

    Raises:
        SpecError: two readers ask for different values, but a tensor has one quantizer.
    """
    values = {getattr(config, key) for config in configs} - {None}
    if len(values) > 1:
        raise SpecError(
            f"The readers of tensor {tensor!r} ask for different values of {key}: "
            f"{sorted(map(str, values))}. "
            "A tensor has one quantizer, so give them the same."
        )
    return values.pop() if values else None
