"""Gains of channels: amplification of a channel's error by the readers of its tensor.

The best range causes the least noise in the outputs of the readers. To first order, that noise is
the sum of each channel's squared error times its squared gain: the sum of the squares of the
weights that read the channel, each with the factor of the normalization behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qat_lib.graph.call_graph import CallGraph, GraphCall

Gains: TypeAlias = Mapping[str, np.ndarray]
"""Squared gains of the channels of a tensor, with a mean of about 1, by quantizer."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedWeights:
    """Weights of a layer in a common layout for both frameworks.

    Attributes:
        weights: ``(outputs, inputs of a group, taps)``.
        groups: number of channel groups.
    """

    weights: np.ndarray
    groups: int = 1

    def gains(self, factors: np.ndarray | None) -> np.ndarray:
        """Return the squared gain of each input channel, with a mean of 1; ones if all are 0.

        Args:
            factors: factor of each output behind the layer; None = no factors. Factors of another
                length than the outputs are ignored.
        """
        weights = self.weights.astype(np.float64)
        if factors is not None and len(factors) == len(weights):
            weights = weights * factors[:, None, None]
        outputs, inputs, taps = weights.shape
        grouped = weights.reshape(self.groups, outputs // self.groups, inputs, taps)
        found = np.sum(grouped**2, axis=(1, 3)).ravel()
        return found / found.mean() if found.any() else np.ones(len(found))


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Framework-specific access to weights and normalizations.

    Attributes:
        kernel: returns the weights applied to the channels of a call's input; None without weights,
            or if calibration measures other channels.
        factors: returns the factor of each channel in a normalization; None for other calls.
    """

    kernel: Callable[[Any], GroupedWeights | None]
    factors: Callable[[Any], np.ndarray | None]


def reader_gains(graph: CallGraph, readings: Readings) -> Gains:
    """Return the gains of every quantizer in front of weighted layers.

    A reader without weights has equal gains. Range-preserving layers, such as a padding, are
    followed to their readers. Quantizers with readers of different channel counts are left out.
    """
    found: dict[str, list[np.ndarray | None]] = {}
    for call in graph.calls:
        if call.traits.is_quantizer:
            gains = found.setdefault(call.traits.quantizer.name, [])
            gains.extend(_gains_of(graph, call.outputs[0], readings))
    totals = {}
    for name, gains in found.items():
        known = [gain for gain in gains if gain is not None]
        if known and len({len(gain) for gain in known}) == 1:
            # Each reader without weights adds a gain of 1, the mean of the others.
            totals[name] = np.sum(known, axis=0) + (len(gains) - len(known))
    return totals


def _gains_of(graph: CallGraph, tensor: str, readings: Readings) -> Iterator[np.ndarray | None]:
    """Yield the gains of each reader of a tensor; None for a reader without weights."""
    for reader, _ in graph.consumers(tensor):
        kernel = readings.kernel(reader)
        if kernel is not None:
            yield kernel.gains(_factors_behind(graph, reader, readings))
        # The parts of a split have other channels.
        elif (
            reader.traits.preserves_range
            and len(reader.outputs) == 1
            and graph.consumers(reader.outputs[0])
        ):
            yield from _gains_of(graph, reader.outputs[0], readings)
        else:
            yield None


def _factors_behind(graph: CallGraph, call: GraphCall, readings: Readings) -> np.ndarray | None:
    """Return the factors of the normalization that is the only reader of a call's output."""
    readers = graph.consumers(call.outputs[0])
    # Another reader would get the output without these factors.
    return readings.factors(readers[0][0]) if len(readers) == 1 else None
