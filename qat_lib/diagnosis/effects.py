"""The effect of quantizers on a model's outputs, some of them on and the rest off."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import tensorflow as tf

from qat_lib.diagnosis.forward import compile_forward
from qat_lib.errors import ConfigError
from qat_lib.graph.layer_graph import LayerGraph
from qat_lib.quantize import model_quantizers

Measure: TypeAlias = Literal["kl", "error"]
Outputs = list[np.ndarray]


class Switchboard:
    """Runs a quantized model with chosen quantizers on, the others passing on.

    The model is traced once. When the block ends the quantizers are as they were.

    Args:
        graph: the graph of the quantized model.
        batches: batches of inputs; each a tensor, or a list of one for each input.
    """

    def __init__(self, graph: LayerGraph, batches: Sequence[Any]) -> None:
        self._quantizers = model_quantizers(graph.model)
        self._enabled = {name: each.enabled for name, each in self._quantizers.items()}
        self._batches = [_as_taken(graph, batch) for batch in batches]
        self._run = compile_forward(graph.model)

    def __enter__(self) -> Switchboard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._switch([name for name, on in self._enabled.items() if on])

    @property
    def names(self) -> tuple[str, ...]:
        """The quantizers that are on in the model as it came."""
        return tuple(name for name, on in self._enabled.items() if on)

    def outputs(self, on: Collection[str]) -> Outputs:
        """Return each output over all batches, with the named quantizers on."""
        self._switch(on)
        parts = [self._run(*batch) for batch in self._batches]
        found = []
        for index in range(len(parts[0])):
            found.append(np.concatenate([np.asarray(part[index], np.float32) for part in parts]))
        return found

    def _switch(self, on: Collection[str]) -> None:
        wanted = set(on)
        for name, quantizer in self._quantizers.items():
            if quantizer.enabled != (name in wanted):
                if name in wanted:
                    quantizer.enable()
                else:
                    quantizer.disable()


def _as_taken(graph: LayerGraph, batch: Any) -> list[Any]:
    """Return a batch as one tensor for each input, in the model's data types."""
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    dtypes = [graph.dtypes[tensor] for tensor in graph.inputs]
    return [tf.cast(part, dtype) for part, dtype in zip(parts, dtypes, strict=True)]


def choose_measure(outputs: Sequence[np.ndarray], asked: str | None = None) -> Measure:
    """Return the measure of an effect that fits a model's outputs.

    Args:
        outputs: the float model's outputs.
        asked: ``"kl"`` or ``"error"``; None = ``"kl"`` for one output ``(samples, classes)`` with
            two classes or more, else ``"error"``.

    Raises:
        ConfigError: ``asked`` is no measure, or ``"kl"`` of other outputs.
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
    """Return how far outputs are from the float model's.

    Args:
        measure: ``"kl"``: mean Kullback-Leibler divergence of the class probabilities from the
            float model's, in nats. ``"error"``: root mean square of the difference over the
            standard deviation of the float outputs, the worst output's.
        outputs: one array for each output.
        reference: the float model's, likewise.
    """
    if measure == "kl":
        return _divergence(outputs[0], reference[0])
    errors = []
    for output, expected in zip(outputs, reference, strict=True):
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
        outputs: ``(samples, classes)``; rows that are not negative and sum to 1 are probabilities.
    """
    values = outputs.astype(np.float64)
    if np.all(values >= 0) and np.all(np.abs(values.sum(axis=1) - 1) < 1e-3):
        values = np.log(np.maximum(values, 1e-12))
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
