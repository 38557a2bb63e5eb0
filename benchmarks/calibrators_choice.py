"""Ranges chosen per tensor by the error they cause, and clipped weights, for ``calibrators.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.calibrators.calibration import needs_data
from qat_lib.calibrators.collecting import collecting
from qat_lib.calibrators.methods import METHODS
from qat_lib.correction.lockstep import BothForms, read_samples, run_lockstep
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.quantize import model_quantizers
from qat_lib.quantizers import TensorQuantizer
from qat_lib.quantizers.fake_quantize import fake_quantize
from qat_lib.ranges import greatest_integer, reduced_axes

SAMPLES = 16
SHARES = np.linspace(0.3, 1.0, 36)
"""Ranges that are tried of a weight, over its largest magnitude."""


class _Counts:
    """Counts of a calibration's report, as range methods take them."""

    def __init__(self, statistics: Any) -> None:
        self.counts, self.edges = statistics.counts, statistics.edges
        self.observed_max, self.upper = statistics.observed_max, float(statistics.edges[-1])


def quantizers_of(model: Any) -> dict[str, Any]:
    """Return a model's quantizers by name."""
    return dict(model_quantizers(model))


def ranges_by(model: Any, report: Any, method: str, percentile: float) -> dict[str, float]:
    """Return each activation's range by a method, from a calibration's histograms."""
    quantizers, found = quantizers_of(model), {}
    for name, statistics in report.tensors.items():
        quantizer, own = quantizers[name], quantizers[name].calibrator
        high = int(greatest_integer(quantizer.num_bits, quantizer.unsigned))
        counts: Any = _Counts(statistics)
        amax = METHODS[own or method](counts, percentile, high)
        found[name] = min(amax, statistics.observed_max)
    return found


def chosen_ranges(
    model: Any, data: np.ndarray, candidates: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return each activation's range that costs its readers least.

    The tensor is quantized with each range, nothing else is, and the readers are computed. Their
    error counts in relation to their own spread, summed over them.
    """
    graph = LayerGraph(model)
    batches = read_samples(graph, data, SAMPLES, SAMPLES)
    found: dict[str, float] = {}
    costs: dict[str, Any] = {}

    def visit(call: Call, outputs: tuple[BothForms, ...]) -> None:
        quantizer = call.operation
        if not isinstance(quantizer, TensorQuantizer) or not needs_data(quantizer):
            return
        x = tf.concat(outputs[0].float, axis=0)
        readers = [reader for reader, _ in graph.consumers(call.outputs[0])]
        ranges = [ranges[quantizer.name] for ranges in candidates]
        table = np.array([_cost(quantizer, amax, x, readers) for amax in ranges])
        costs[quantizer.name] = costs.get(quantizer.name, 0) + table
        found[quantizer.name] = ranges[int(np.argmin(costs[quantizer.name]))]

    run_lockstep(graph, batches, visit, quantized=False)
    return found


def _cost(quantizer: Any, amax: float, x: Any, readers: Sequence[Call]) -> float:
    rounded = fake_quantize(
        x, tf.constant(max(amax, 1e-6), tf.float32), num_bits=quantizer.num_bits,
        narrow_range=quantizer.narrow_range, unsigned=quantizer.unsigned, learned=False,
    )  # fmt: skip
    cost = 0.0
    for reader in readers:
        before, after = x, rounded
        if len(reader.inputs) == 1:
            with collecting(_PassOn()):
                before, after = reader.operation(x), reader.operation(rounded)
        width = before.shape[-1]
        error = tf.reshape(after - before, (-1, width))
        power = float(tf.reduce_mean(tf.math.reduce_variance(tf.reshape(before, (-1, width)), 0)))
        # Bias correction takes the mean out.
        spread = float(tf.reduce_mean(tf.math.reduce_variance(error, 0)))
        cost += spread / max(power, 1e-12)
    return cost


class _PassOn:
    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Let quantizers pass their inputs on."""


def clip_weights(quantizers: Iterable[Any]) -> None:
    """Clip each weight, per channel, to the range with the least squared error."""
    for quantizer in quantizers:
        if not quantizer.of_weight:
            continue
        variable = quantizer.weight
        weights = tf.convert_to_tensor(variable).numpy()
        axes = tuple(reduced_axes(weights.ndim, quantizer.channel_axes))
        high = greatest_integer(quantizer.num_bits, False)
        largest = np.abs(weights).max(axis=axes, keepdims=True)
        best, least = largest, np.full(largest.shape, np.inf)
        for share in SHARES:
            step = np.maximum(share * largest, 1e-12) / high
            error = np.clip(np.rint(weights / step), -high, high) * step - weights
            square = np.sum(error**2, axis=axes, keepdims=True)
            best = np.where(square <= least, share * largest, best)
            least = np.minimum(square, least)
        variable.assign(np.clip(weights, -best, best))
