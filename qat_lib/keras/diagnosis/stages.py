"""Compiled stages of a Keras model, to rerun only the part after a change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import layers_inside

STAGES = 24
"""Maximum number of stages of a model."""
MEMORY = 2**28
"""Maximum bytes of the tensors between stages, for one form (float or quantized) of the model."""
BYTES_PER_ELEMENT = 4


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Calls compiled into one function.

    Attributes:
        calls: the calls, in the order of the model.
        reads: tensors of earlier stages, read by these or later calls.
        gives: tensors read by later stages; for the last stage, the outputs of the model.
    """

    calls: tuple[Call, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]

    def run(self, *tensors: Any) -> list[Any]:
        """Compute ``gives`` from ``reads`` in inference mode."""
        known = dict(zip(self.reads, tensors, strict=True))
        for call in self.calls:
            inputs = [known[name] for name in call.inputs]
            args, kwargs = call.fill(inputs.__getitem__)
            # The recorded arguments may contain ``training=True`` of the original call.
            if getattr(call.operation, "_call_has_training_arg", False):
                kwargs["training"] = False
            outputs = keras.tree.flatten(call.operation(*args, **kwargs))
            known.update(zip(call.outputs, outputs, strict=True))
        return [known[name] for name in self.gives]


class StagedModel:
    """A quantized model in compiled stages, each traced once.

    Args:
        graph: the graph of the model.
        samples: number of samples in all batches, to estimate the memory of the tensors between
            stages.
    """

    def __init__(self, graph: LayerGraph, samples: int) -> None:
        self.stages = cut_stages(graph, samples)
        # The last batch may be smaller; without reduce_retracing each size would trace every stage.
        self._runs = [
            tf.function(stage.run, reduce_retracing=True, autograph=False) for stage in self.stages
        ]
        self._stage_of: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            for call in stage.calls:
                for name in quantizers_of(call):
                    self._stage_of.setdefault(name, number)

    def __len__(self) -> int:
        """Return the number of stages."""
        return len(self.stages)

    def first_stage(self, quantizers: Sequence[str]) -> int:
        """Return the first stage with one of the quantizers; the number of stages without one."""
        return min((self._stage_of.get(name, 0) for name in quantizers), default=len(self))

    def run(self, first: int, tensors: Sequence[Any]) -> list[list[Any]]:
        """Run the stages from ``first`` to the last.

        Args:
            first: number of the first stage.
            tensors: the tensors it reads.

        Returns:
            The output tensors of each of these stages; the last entry is the model's outputs.
        """
        found = []
        for run in self._runs[first:]:
            tensors = run(*tensors)
            found.append(list(tensors))
        return found


def quantizers_of(call: Call) -> list[str]:
    """Return the names of the quantizers of a call."""
    layer = call.operation
    if not isinstance(layer, keras.layers.Layer):
        return []
    within = [layer, *layers_inside(layer)]
    return [each.name for each in within if isinstance(each, TensorQuantizer)]


def cut_stages(graph: LayerGraph, samples: int) -> list[Stage]:
    """Return the calls of a model in stages with about the same number of quantizers.

    Each cut is placed at the fewest live bytes in its neighbourhood; the largest cuts are dropped
    until the total is at most ``MEMORY``. Keras attaches masks to tensors, and they don't survive
    the boundary of a stage: a model with masks is one stage.
    """
    calls = [call for call in graph.calls if not call.is_input]
    alive = _alive_behind(graph, calls)
    cuts = [] if any(map(_makes_mask, calls)) else _cuts(graph, calls, alive, samples)
    stages, start, reads = [], 0, tuple(graph.inputs)
    for stop in [*cuts, len(calls)]:
        gives = graph.outputs if stop == len(calls) else alive[stop - 1]
        stages.append(Stage(calls=tuple(calls[start:stop]), reads=reads, gives=gives))
        start, reads = stop, gives
    return stages


def _makes_mask(call: Call) -> bool:
    return isinstance(call.core, keras.layers.Masking) or getattr(call.core, "mask_zero", False)


def _alive_behind(graph: LayerGraph, calls: Sequence[Call]) -> list[tuple[str, ...]]:
    """Return the live tensors after each call: read by later calls, or outputs of the model."""
    last: dict[str, int] = {}
    for index, call in enumerate(calls):
        last.update(dict.fromkeys(call.inputs, index))
    last.update(dict.fromkeys(graph.outputs, len(calls)))
    found: list[tuple[str, ...]] = []
    alive = list(graph.inputs)
    for index, call in enumerate(calls):
        alive = [name for name in (*alive, *call.outputs) if last.get(name, -1) > index]
        found.append(tuple(alive))
    return found


def _cuts(
    graph: LayerGraph, calls: Sequence[Call], alive: Sequence[tuple[str, ...]], samples: int
) -> list[int]:
    """Return the indices of the calls that start a new stage."""
    total = sum(len(quantizers_of(call)) for call in calls)
    windows: dict[int, list[int]] = {}
    seen = 0
    for index, call in enumerate(calls[:-1]):
        seen += len(quantizers_of(call))
        # One window of calls per possible cut, each with an equal share of the quantizers.
        windows.setdefault(seen * STAGES // max(total, 1), []).append(index + 1)
    sizes: dict[int, int] = {}
    for window, candidates in windows.items():
        # A cut in an outer window would leave a stage with few or no quantizers.
        if 0 < window < STAGES:
            cut = min(candidates, key=lambda index: _bytes(alive[index - 1], graph.shapes))
            sizes[cut] = samples * _bytes(alive[cut - 1], graph.shapes)
    while sum(sizes.values()) > MEMORY:
        del sizes[max(sizes, key=sizes.__getitem__)]
    return sorted(sizes)


def _bytes(names: Sequence[str], shapes: Mapping[str, tuple[int | None, ...]]) -> int:
    """Return the bytes of the tensors of one sample; an axis of unknown size counts as 1."""
    elements = sum(math.prod(size or 1 for size in shapes[name][1:]) for name in names)
    return BYTES_PER_ELEMENT * elements
