"""Effect of a subset of enabled quantizers on the outputs of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.keras.diagnosis.stages import StagedModel
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.optimization.metrics import Outputs


class Switchboard:
    """Runs a quantized model with a subset of its quantizers enabled.

    The model is traced once, in stages. Leading stages that match the float model or the fully
    quantized model reuse the tensors of a cached run, so weights and ranges must not change in the
    meantime. On exit, the switches of the quantizers are restored.

    Args:
        graph: the graph of the quantized model.
        batches: batches of inputs, each a tensor or a list with one tensor per input.
    """

    def __init__(self, graph: LayerGraph, batches: Sequence[Any]) -> None:
        self._quantizers = model_quantizers(graph.model)
        self._enabled = {name: each.enabled for name, each in self._quantizers.items()}
        # Tracked here, since reading a switch reads a variable.
        self._on = {name for name, on in self._enabled.items() if on}
        self._batches = [_as_taken(graph, batch) for batch in batches]
        self._model = StagedModel(graph, sum(len(batch[0]) for batch in self._batches))
        # Enabled quantizers -> tensors read, by stage and batch; the last entry is the outputs.
        self._known: dict[frozenset[str], list[list[list[Any]]]] = {}

    def __enter__(self) -> Switchboard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._known.clear()
        self._switch([name for name, on in self._enabled.items() if on])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantizers that were enabled on entry."""
        return tuple(name for name, on in self._enabled.items() if on)

    def outputs(self, on: Collection[str]) -> Outputs:
        """Return each output over all batches, with only the named quantizers enabled."""
        first, tensors = self._nearest(frozenset(on))
        # Past the last stage, the cached tensors are the outputs.
        if first < len(self._model):
            self._switch(on)
            tensors = [self._model.run(first, batch)[-1] for batch in tensors]
        found = []
        for index in range(len(tensors[0])):
            found.append(np.concatenate([np.asarray(x[index], np.float32) for x in tensors]))
        return found

    def _nearest(self, on: frozenset[str]) -> tuple[int, list[list[Any]]]:
        """Return the first stage to run, and its input tensors for each batch."""
        best = -1
        reads: list[list[Any]] = []
        for known in (frozenset[str](), frozenset(self.names)):
            # Up to the first quantizer in a different state, both runs are identical.
            first = self._model.first_stage([*(on ^ known)])
            if first > best:
                best, reads = first, self._read(known)[first]
        return best, reads

    def _read(self, on: frozenset[str]) -> list[list[list[Any]]]:
        """Return the inputs of each stage, and the outputs, with the named quantizers enabled."""
        if on not in self._known:
            self._switch(on)
            runs = [[batch, *self._model.run(0, batch)] for batch in self._batches]
            self._known[on] = [list(parts) for parts in zip(*runs, strict=True)]
        return self._known[on]

    def _switch(self, on: Collection[str]) -> None:
        wanted = set(on) & self._quantizers.keys()
        # Assign only changed switches: each is a variable.
        for name in wanted ^ self._on:
            if name in wanted:
                self._quantizers[name].enable()
            else:
                self._quantizers[name].disable()
        self._on = wanted


def _as_taken(graph: LayerGraph, batch: Any) -> list[Any]:
    """Return a batch as one tensor for each input, in the model's data types."""
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    dtypes = [graph.dtypes[tensor] for tensor in graph.inputs]
    return [tf.cast(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)]
