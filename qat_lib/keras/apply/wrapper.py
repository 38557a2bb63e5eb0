"""Wrappers of layers, built from the entries of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qat_lib.core.plan import QuantizerEntry
from qat_lib.errors import PlanError
from qat_lib.keras.wrappers import REGISTRY


def wrap_layer(name: str, layer: Any, original: str, entries: Sequence[QuantizerEntry]) -> Any:
    """Return ``layer`` wrapped with the quantizers of ``entries``.

    Args:
        name: name of the wrapper.
        layer: the copy of the layer, built or not.
        original: name of the layer in the plan.
        entries: plan entries of its weights and inner tensors.

    Raises:
        PlanError: the layer has no wrapper, or an entry names a missing weight or tensor.
    """
    wrapper = REGISTRY.find(type(layer))
    if wrapper is None:
        raise PlanError(
            f"The plan wraps {original!r}, but no wrapper supports {type(layer).__name__}."
        )
    weights = [entry for entry in entries if entry.kind == "weight"]
    internal = [entry for entry in entries if entry.kind == "internal"]
    _check_parts(wrapper, layer, entries)
    return wrapper(
        layer,
        quantize_inputs=False,
        quantize_weights=bool(weights),
        quantize_internal=bool(internal),
        weight_options=_weight_options(weights),
        input_options=_input_options(internal),
        name=name,
    )


def _check_parts(wrapper: Any, layer: Any, entries: Sequence[QuantizerEntry]) -> None:
    own = {"internal": set(wrapper.internal_names), "weight": set()}
    if any(entry.kind == "weight" for entry in entries) and hasattr(wrapper, "planned_weights"):
        own["weight"] = set(wrapper(layer).planned_weights())
    for entry in entries:
        part = entry.tensor.partition("/")[2]
        if part not in own[entry.kind]:
            raise PlanError(
                f"The plan names {entry.tensor!r}, but {type(layer).__name__} has no {entry.kind} "
                f"{part!r} to quantize. It has: {', '.join(sorted(own[entry.kind])) or 'none'}."
            )


def _weight_options(entries: list[QuantizerEntry]) -> dict[str, Any]:
    """Return the options of the weight quantizers, by weight if they differ."""
    each = {
        entry.tensor.rpartition("/")[2]: {
            "num_bits": entry.num_bits,
            "range_policy": entry.range_policy,
            "channel_axes": None if entry.channel_axes is None else list(entry.channel_axes),
            **({} if entry.pair_axis is None else {"pair_axis": entry.pair_axis}),
        }
        for entry in entries
    }
    # Equal options are stored once, for all weights; the saved config is shorter and applies to any
    # number of weights.
    options = list(each.values())
    return options[0] if options and all(o == options[0] for o in options) else each


def _input_options(entries: list[QuantizerEntry]) -> dict[str, Any]:
    if not entries:
        return {}
    first = entries[0]
    return {
        "num_bits": first.num_bits,
        "range_policy": first.range_policy,
        "calibrator": first.calibrator,
    }
