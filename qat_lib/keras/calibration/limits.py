"""Limits of ranges after a ReLU with a bound per channel."""

from __future__ import annotations

import math
from typing import Any

from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers.channel_relu import ChannelReLU


def channel_limits(model: Any) -> dict[str, float]:
    """Return the smallest bound of the ``ChannelReLU`` before each quantizer, by quantizer name.

    A range up to this limit makes the bounds redundant. Otherwise, the exported graph would need a
    minimum with a constant per channel, and no engine fuses it into the preceding convolution.
    ``equalize`` sets the smallest bound at or above all observed values, so the limit clips only
    outliers. Quantizers of several tensors have no limit.
    """
    try:
        graph = LayerGraph(model)
    except UnsupportedModelError:
        return {}
    limits: dict[str, float] = {}
    for call in graph.calls:
        if not isinstance(call.core, ChannelReLU):
            continue
        for reader, _ in graph.consumers(call.outputs[0]):
            if reader.traits.is_quantizer and len(graph.calls_of(reader.layer)) == 1:
                limits[reader.layer] = min(*call.core.bounds, limits.get(reader.layer, math.inf))
    return limits
