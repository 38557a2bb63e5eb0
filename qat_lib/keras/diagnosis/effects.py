"""Effect of a subset of enabled quantizers on the outputs of a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import tensorflow as tf

from qat_lib.errors import ConfigError
from qat_lib.keras.diagnosis.stages import StagedModel
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers import model_quantizers

Measure: TypeAlias = Literal["kl", "error"]
Outputs = list[np.ndarray]


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
        self._known: dict[frozenset[str], list[list[list[Any]]]] = {}
        """Enabled quantizers -> tensors read, by stage and batch; the last entry is the outputs."""

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


def choose_measure(outputs: Sequence[np.ndarray], asked: str | None = None) -> Measure:
    """Return the effect measure for the outputs of a model.

    Args:
        outputs: the float model's outputs.
        asked: ``"kl"`` or ``"error"``; None = ``"kl"`` for one output ``(samples, classes)`` with
            two classes or more, else ``"error"``.

    Raises:
        ConfigError: ``asked`` is not a measure, or is ``"kl"`` for other outputs.
    """
    is_classifier = len(outputs) == 1 and outputs[0].ndim == 2 and outputs[0].shape[1] > 1
    if asked is None:
        return "kl" if is_classifier else "error"
    if asked == "kl" and not is_classifier:
        shapes = ", ".join(str(output.shape) for output in outputs)
        raise ConfigError(
            "Expected one output (samples, classes) for the measure 'kl'. Received outputs of "
            f"{shapes}: take 'error'."
        )
    if asked in get_args(Measure):
        return cast("Measure", asked)
    raise ConfigError(f"Expected a measure: 'kl' or 'error'. Received: {asked!r}.")


def effect(measure: Measure, outputs: Outputs, reference: Outputs) -> float:
    """Return the distance of outputs from those of the float model.

    Args:
        measure: ``"kl"``: mean Kullback-Leibler divergence of the class probabilities from the
            float model's, in nats. ``"error"``: root mean square of the difference over the
            standard deviation of the float outputs, for the worst output.
        outputs: one array per output.
        reference: outputs of the float model, one array per output.
    """
    if measure == "kl":
        return _divergence(outputs[0], reference[0])
    errors = []
    for output, expected in zip(outputs, reference, strict=True):
        # In float64: the squares of large outputs overflow or lose digits in lower precision.
        spread = float(np.std(expected.astype(np.float64)))
        error = float(np.sqrt(np.mean(np.square(output.astype(np.float64) - expected))))
        errors.append(error / max(spread, 1e-12))
    return max(errors)


def _divergence(outputs: np.ndarray, reference: np.ndarray) -> float:
    ours, theirs = log_probabilities(outputs), log_probabilities(reference)
    return float(np.mean(np.sum(np.exp(theirs) * (theirs - ours), axis=1)))


def log_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Return the logarithms of class probabilities, from logits or probabilities.

    Args:
        outputs: ``(samples, classes)``; non-negative rows with a sum of 1 count as probabilities.
    """
    values = outputs.astype(np.float64)
    if np.all(values >= 0) and np.all(np.abs(values.sum(axis=1) - 1) < 1e-3):
        values = np.log(np.maximum(values, 1e-12))
    # Probabilities above became logits: log-softmax normalizes both.
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
