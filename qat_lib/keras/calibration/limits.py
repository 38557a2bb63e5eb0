"""Limits of ranges behind a ReLU with a bound for each channel."""

from __future__ import annotations

import math
from typing import Any

from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers.channel_relu import ChannelReLU


def channel_limits(model: Any) -> dict[str, float]:
    """Return the least bound of the ``ChannelReLU`` in front of each quantizer that has one.

    A range that ends there makes the bounds redundant. Otherwise the exported graph would need a
    minimum with a constant for each channel, which no engine fuses into the convolution in front.
    ``equalize`` puts the least bound at or beyond all values that it observed, so that the limit
    clips outliers only. A quantizer of several tensors has no limit.
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
