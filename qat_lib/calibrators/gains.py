"""How strongly the layers that read a tensor pass on an error of each of its channels.

A range is best where it harms the outputs of the readers least. To first order the noise there is
the sum of each channel's squared error times its squared gain: the sum of the squares of the
weights that read it, each with the factor of the normalization behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from qat_lib.graph.call_graph import CallGraph, GraphCall

Gains: TypeAlias = Mapping[str, np.ndarray]
"""Quantizer -> the squared gain of each channel of its tensor, with a mean of about 1."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedWeights:
    """A layer's weights in the one layout that both frameworks' are brought to.

    Attributes:
        weights: ``(outputs, inputs of a group, taps)``.
        groups: number of groups that channels are cut into.
    """

    weights: np.ndarray
    groups: int = 1

    def gains(self, factors: np.ndarray | None) -> np.ndarray:
        """Return the squared gain of each input channel, with a mean of 1; alike where all are 0.

        Args:
            factors: what each output is multiplied by afterwards; None = nothing. Factors along
                another axis than the outputs' are left out.
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
    """What a framework knows of its layers.

    Attributes:
        kernel: the weights that a call multiplies its input's channels by; None if it has none,
            or its channels are not those that calibration sees.
        factors: what a normalization multiplies each channel by; None for other calls.
    """

    kernel: Callable[[Any], GroupedWeights | None]
    factors: Callable[[Any], np.ndarray | None]


def reader_gains(graph: CallGraph, readings: Readings) -> Gains:
    """Return the gains of every quantizer whose tensor weighted layers read.

    A reader without weights counts every channel alike. A layer that keeps the range, such as a
    padding, is followed to what reads it. A quantizer whose readers differ in the number of
    channels is left out.
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
            totals[name] = np.sum(known, axis=0) + (len(gains) - len(known))
    return totals


def _gains_of(graph: CallGraph, tensor: str, readings: Readings) -> Iterator[np.ndarray | None]:
    """Yield the gains of each reader of a tensor; None of one without weights."""
    for reader, _ in graph.consumers(tensor):
        kernel = readings.kernel(reader)
        if kernel is not None:
            yield kernel.gains(_factors_behind(graph, reader, readings))
        elif reader.traits.preserves_range and graph.consumers(reader.outputs[0]):
            yield from _gains_of(graph, reader.outputs[0], readings)
        else:
            yield None


def _factors_behind(graph: CallGraph, call: GraphCall, readings: Readings) -> np.ndarray | None:
    """Return the factors of the normalization that alone reads a call's output."""
    readers = graph.consumers(call.outputs[0])
    return readings.factors(readers[0][0]) if len(readers) == 1 else None
