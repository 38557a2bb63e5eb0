"""A Keras model's calls in stages, so that a change late in it needs no whole run."""

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
"""Stages that a model is cut into, at most."""
MEMORY = 2**28
"""Bytes that the tensors between stages may take, in one form of the model."""
BYTES_PER_ELEMENT = 4


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Calls that run together.

    Attributes:
        calls: the calls, in the order of the model.
        reads: tensors of earlier stages that these calls or later ones read.
        gives: tensors that later stages read; of the last one the model's outputs.
    """

    calls: tuple[Call, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]

    def run(self, *tensors: Any) -> list[Any]:
        """Compute ``gives`` from ``reads`` at inference."""
        known = dict(zip(self.reads, tensors, strict=True))
        for call in self.calls:
            inputs = [known[name] for name in call.inputs]
            args, kwargs = call.fill(inputs.__getitem__)
            if getattr(call.operation, "_call_has_training_arg", False):
                kwargs["training"] = False
            outputs = keras.tree.flatten(call.operation(*args, **kwargs))
            known.update(zip(call.outputs, outputs, strict=True))
        return [known[name] for name in self.gives]


class StagedModel:
    """A quantized model in compiled stages, each traced once.

    Args:
        graph: the graph of the model.
        samples: number of samples that run together, for the memory that tensors between stages
            take.
    """

    def __init__(self, graph: LayerGraph, samples: int) -> None:
        self.stages = cut_stages(graph, samples)
        self._runs = [tf.function(stage.run, reduce_retracing=True) for stage in self.stages]
        self._stage_of: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            for call in stage.calls:
                for name in quantizers_of(call):
                    self._stage_of.setdefault(name, number)

    def __len__(self) -> int:
        """Return the number of stages."""
        return len(self.stages)

    def first_stage(self, quantizers: Sequence[str]) -> int:
        """Return the first stage that runs one of some quantizers; past the end if none does."""
        return min((self._stage_of.get(name, 0) for name in quantizers), default=len(self))

    def run(self, first: int, tensors: Sequence[Any]) -> list[list[Any]]:
        """Run the stages from one on.

        Args:
            first: number of that stage.
            tensors: what it reads.

        Returns:
            What each of these stages gives; the last are the model's outputs.
        """
        found = []
        for run in self._runs[first:]:
            tensors = run(*tensors)
            found.append(list(tensors))
        return found


def quantizers_of(call: Call) -> list[str]:
    """Return the names of the quantizers that a call runs."""
    layer = call.operation
    if not isinstance(layer, keras.layers.Layer):
        return []
    within = [layer, *layers_inside(layer)]
    return [each.name for each in within if isinstance(each, TensorQuantizer)]


def cut_stages(graph: LayerGraph, samples: int) -> list[Stage]:
    """Cut a model's calls into stages with about as many quantizers each.

    Within that, a cut stands where the fewest bytes are alive, and what would take more than
    ``MEMORY`` is not cut. A mask goes along with its tensor within a stage only: a model with masks
    is one stage.
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
    """Return behind each call the tensors that later ones read, or the model gives."""
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
    """Return the numbers of the calls in front of which to cut."""
    total = sum(len(quantizers_of(call)) for call in calls)
    windows: dict[int, list[int]] = {}
    seen = 0
    for index, call in enumerate(calls[:-1]):
        seen += len(quantizers_of(call))
        windows.setdefault(seen * STAGES // max(total, 1), []).append(index + 1)
    sizes: dict[int, int] = {}
    for window, candidates in windows.items():
        if 0 < window < STAGES:
            cut = min(candidates, key=lambda index: _bytes(alive[index - 1], graph.shapes))
            sizes[cut] = samples * _bytes(alive[cut - 1], graph.shapes)
    while sum(sizes.values()) > MEMORY:
        del sizes[max(sizes, key=sizes.__getitem__)]
    return sorted(sizes)


def _bytes(names: Sequence[str], shapes: Mapping[str, tuple[int | None, ...]]) -> int:
    """Return the bytes of one sample's tensors; an axis of unknown size counts as 1."""
    elements = sum(math.prod(size or 1 for size in shapes[name][1:]) for name in names)
    return BYTES_PER_ELEMENT * elements
