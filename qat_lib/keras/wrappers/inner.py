"""Weighted layers inside a composite layer, by attribute path.

A composite is a layer that calls other layers: TimeDistributed, a transformer block, a custom
layer. Paths use attributes, because generated names of inner layers differ between copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import RECORDS, children_of
from qat_lib.keras.wrappers.base import BaseQuantizeWrapper
from qat_lib.keras.wrappers.registry import REGISTRY
from qat_lib.keras.wrappers.weighted import WeightedBaseQuantizeWrapper


def inner_layers(layer: Any) -> dict[str, Any]:
    """Return the quantizable inner layers by path, such as ``"attention/query_dense"``.

    A path consists of attribute names without leading underscores, and of list indices. If a layer
    creates its inner layers in ``build`` or in its first call, the result is empty before.
    """
    found: dict[str, Any] = {}
    _collect(layer, "", found, {id(layer)})
    return found


def inner_wrapper(layer: Any) -> WeightedBaseQuantizeWrapper:
    """Return a wrapper of an inner layer, to find its weights; the wrapper is not called."""
    wrapper: WeightedBaseQuantizeWrapper = REGISTRY.find(type(layer))(
        layer, quantize_inputs=False, quantize_weights=False
    )
    return wrapper


def is_composite(layer: Any) -> bool:
    """Whether a layer has no registered wrapper and contains weighted layers."""
    is_layer = isinstance(layer, keras.layers.Layer) and not isinstance(
        layer, BaseQuantizeWrapper | TensorQuantizer
    )
    return is_layer and REGISTRY.find(type(layer)) is None and bool(inner_layers(layer))


def _collect(layer: Any, prefix: str, found: dict[str, Any], seen: set[int]) -> None:
    for label, child in _children(layer):
        if id(child) in seen or isinstance(child, BaseQuantizeWrapper | TensorQuantizer):
            continue
        seen.add(id(child))
        if _reads_plain_weights(type(child)):
            found[prefix + label] = child
        else:
            _collect(child, f"{prefix}{label}/", found, seen)


def _reads_plain_weights(layer_class: type) -> bool:
    """Whether quantized inputs and weights suffice to quantize the layer."""
    wrapper = REGISTRY.find(layer_class)
    return (
        wrapper is not None
        and issubclass(wrapper, WeightedBaseQuantizeWrapper)
        and not wrapper.internal_names
        and wrapper.call is BaseQuantizeWrapper.call
        and wrapper.call_layer is WeightedBaseQuantizeWrapper.call_layer
    )


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the children of a layer with labels: attributes, or names in models."""
    labels: dict[int, str] = {}
    for name, value in vars(layer).items() if not isinstance(layer, keras.Model) else ():
        if name in RECORDS or name.startswith("_self_"):  # TensorFlow's own records
            continue
        for place, child in _layers_in(value, name.strip("_")):
            labels.setdefault(id(child), place)
    used: set[str] = set()
    for child in children_of(layer):
        label = base = labels.get(id(child)) or _own_name(child)
        count = 1
        while label in used:
            label, count = f"{base}_{count}", count + 1
        used.add(label)
        yield label, child


def _own_name(layer: Any) -> str:
    """Return the name of a layer without Keras's number, which differs between copies."""
    head, _, number = str(layer.name).rpartition("_")
    is_made_up = (
        number.isdigit() and head.replace("_", "") == type(layer).__name__.replace("_", "").lower()
    )
    return head if is_made_up else str(layer.name)


def _layers_in(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, keras.layers.Layer):
        yield place, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _layers_in(item, f"{place}/{i}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _layers_in(item, f"{place}/{key}")
