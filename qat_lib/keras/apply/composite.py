"""Wrappers of composite layers, built from the entries of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qat_lib.core.plan import QuantizerEntry
from qat_lib.errors import PlanError
from qat_lib.keras.wrappers import CompositeQuantizeWrapper
from qat_lib.keras.wrappers.inner import inner_layers, inner_wrapper


def wrap_composite(
    name: str, layer: Any, original: Any, entries: Sequence[QuantizerEntry]
) -> CompositeQuantizeWrapper:
    """Return ``layer`` wrapped with the quantizers of ``entries``.

    Args:
        name: name of the wrapper.
        layer: the copy of the layer, built or not.
        original: the built original of the copy.
        entries: plan entries of its weights and inner tensors.

    Raises:
        PlanError: an entry names a missing inner layer or weight.
    """
    inner = inner_layers(original)
    return CompositeQuantizeWrapper(
        layer,
        quantize_inputs=False,
        weights=[_weight(entry, inner) for entry in entries if entry.kind == "weight"],
        inputs=[_input(entry, inner) for entry in entries if entry.kind == "internal"],
        name=name,
    )


def _weight(entry: QuantizerEntry, inner: Mapping[str, Any]) -> dict[str, Any]:
    part = entry.tensor.partition("/")[2]
    path, _, kernel = part.rpartition("/")
    wrapper = inner_wrapper(_find(entry, path, inner))
    if kernel not in wrapper.planned_weights():
        raise PlanError(
            f"The plan names {entry.tensor!r}, but {type(inner[path]).__name__} has no weight "
            f"{kernel!r} to quantize. "
            f"It has: {', '.join(wrapper.planned_weights()) or 'none'}."
        )
    return {
        "weight": part,
        "name": entry.name,
        "shape": list(wrapper.kernel_variable(kernel).shape),
        "num_bits": entry.num_bits,
        "range_policy": entry.range_policy,
        "channel_axes": None if entry.channel_axes is None else list(entry.channel_axes),
        **({} if entry.pair_axis is None else {"pair_axis": entry.pair_axis}),
    }


def _input(entry: QuantizerEntry, inner: Mapping[str, Any]) -> dict[str, Any]:
    readers = [consumer.layer.partition("/")[2] for consumer in entry.consumers]
    if not readers:
        raise PlanError(f"The plan names no reader of {entry.tensor!r}: give its consumers.")
    for path in readers:
        _find(entry, path, inner)
    options = {
        "num_bits": entry.num_bits,
        "range_policy": entry.range_policy,
        "calibrator": entry.calibrator,
    }
    return {"name": entry.name, "readers": readers, "options": options}


def _find(entry: QuantizerEntry, path: str, inner: Mapping[str, Any]) -> Any:
    if path not in inner:
        raise PlanError(
            f"The plan names {entry.tensor!r}, but it contains no weighted layer {path!r}. "
            f"Its weighted layers: {', '.join(inner) or 'none'}."
        )
    return inner[path]
