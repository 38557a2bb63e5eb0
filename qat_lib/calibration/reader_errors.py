"""The method for each tensor whose range costs the layers that read it least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.batches import count_samples
from qat_lib.calibrators.calibration import Rivals
from qat_lib.calibrators.collecting import collecting
from qat_lib.correction.lockstep import read_samples, run_lockstep
from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.lockstep.steps import BothForms
from qat_lib.quantizers import TensorQuantizer
from qat_lib.quantizers.fake_quantize import fake_quantize
from qat_lib.ranges import AMAX_FLOOR

SAMPLES = 8
"""Samples that errors are measured on, at most."""
POSITIONS = 2048
"""Positions of an output that its error is taken of, at most about."""
SAME = 0.01
"""Relative difference below which two ranges count as one."""


class ReaderErrors:
    """Chooses ranges by the error of the outputs of the layers that read a tensor.

    The tensor alone is quantized, with each range in turn. The error of an output is the variance
    of the difference within each channel, since bias correction takes the mean out, over that of
    the output. A tensor that a layer reads together with others, as an addition does, counts with
    its own error.

    Args:
        model: a quantized model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._batches: list[Any] = []
        self._left = SAMPLES

    def watched(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, and keep the first samples."""
        for batch in batches:
            if self._left > 0:
                count = min(self._left, count_samples(batch))
                self._batches.append(keras.tree.map_structure(lambda x, n=count: x[:n], batch))
                self._left -= count
            yield batch

    def __call__(self, rivals: Rivals) -> Mapping[str, str]:
        """Return the best of the rival methods of each tensor.

        A quantizer within a layer is left out: its readers are not known.
        """
        try:
            graph = LayerGraph(self._model)
        except UnsupportedModelError:
            return {}
        costs: dict[str, np.ndarray] = {}

        def visit(call: Call, outputs: tuple[BothForms, ...]) -> None:
            quantizer = call.operation
            if not isinstance(quantizer, TensorQuantizer) or quantizer.name not in rivals:
                return
            ranges, place = _distinct(list(rivals[quantizer.name].values()))
            if len(ranges) == 1:
                costs[quantizer.name] = np.zeros(len(place))
                return
            with collecting(_PassOn()):
                for x in outputs[0].float:
                    found = np.array(_costs(graph, call, x, ranges))[place]
                    costs[quantizer.name] = costs.get(quantizer.name, 0.0) + found

        batches = read_samples(graph, self._batches, SAMPLES, SAMPLES)
        run_lockstep(graph, batches, visit, quantized=False)
        best = {}
        for name, cost in costs.items():
            best[name] = list(rivals[name])[int(np.argmin(cost))]
        return best


class _PassOn:
    """A collector that takes no note: quantizers pass their inputs on."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Do nothing."""


def _costs(graph: LayerGraph, call: Call, x: Any, ranges: list[float]) -> list[float]:
    """Return the error that each range of a quantizer causes, summed over the readers."""
    quantizer = call.operation
    plain = [_positions(output) for output in _read(graph, call.outputs[0], x)]
    powers = [max(_variance(output), 1e-12) for output in plain]
    costs = []
    for amax in ranges:
        rounded = fake_quantize(
            x,
            tf.constant(max(amax, AMAX_FLOOR), tf.float32),
            num_bits=quantizer.num_bits,
            narrow_range=quantizer.narrow_range,
            unsigned=quantizer.unsigned,
        )
        cost = 0.0
        for before, power, output in zip(
            plain, powers, _read(graph, call.outputs[0], rounded), strict=True
        ):
            cost += _variance(_positions(output) - before) / power
        costs.append(cost)
    return costs


def _distinct(ranges: list[float]) -> tuple[list[float], list[int]]:
    """Return the ranges that differ, and for each range the place of its own among them."""
    found: list[float] = []
    places = []
    for amax in ranges:
        for place, other in enumerate(found):
            if abs(amax - other) <= SAME * other:
                places.append(place)
                break
        else:
            places.append(len(found))
            found.append(amax)
    return found, places


def _read(graph: LayerGraph, tensor: str, x: Any) -> list[Any]:
    """Return what the readers of a tensor make of it; itself where they read others too.

    A layer that keeps the range, such as a padding, is followed to what reads it.
    """
    found = []
    for reader, _ in graph.consumers(tensor):
        assert isinstance(reader, Call)
        if len(reader.inputs) != 1 or len(reader.outputs) != 1:
            found.append(x)
            continue
        args, kwargs = reader.fill([x].__getitem__)
        made = keras.tree.flatten(reader.operation(*args, **kwargs))[0]
        if reader.traits.preserves_range and graph.consumers(reader.outputs[0]):
            found.extend(_read(graph, reader.outputs[0], made))
        else:
            found.append(made)
    return found or [x]


def _variance(rows: Any) -> float:
    """Return the variance within each channel, averaged over the channels."""
    return float(tf.reduce_mean(tf.math.reduce_variance(rows, axis=0)))


def _positions(tensor: Any) -> Any:
    """Return evenly spaced positions of a tensor, float32 ``(positions, channels)``."""
    rows = tf.reshape(tensor, (-1, tensor.shape[-1]))
    return tf.cast(rows[:: max(1, len(rows) // POSITIONS)], tf.float32)
