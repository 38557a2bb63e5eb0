"""Bias correction: remove quantization's mean error from each layer's bias.

Source: Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction"
(https://arxiv.org/abs/1906.04721), the empirical form (appendix D): each layer is corrected on the
errors that are left once all layers in front of it are. Where a batch normalization stands behind a
layer, its mean is corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qat_lib.calibrators.batches import count_samples
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.lockstep.steps import BothForms, Visit

TRIM = 0.05
"""Share of the errors of a channel that is left out of their mean, at each end. A range that clips
outliers makes a few large errors, which no constant mends: with the plain mean in place of the
trimmed one MobileNetV2 is worse off than without a correction."""
POSITIONS = 8192
"""Positions of a channel that its mean is taken of, at most."""


@dataclass(frozen=True, kw_only=True)
class BiasReport:
    """What a bias correction did.

    Attributes:
        shifts: layer -> the greatest shift of one of its channels, in units of the spread of that
            channel's outputs.
        skipped: quantized layer without a correction -> the reason.
        samples: number of samples that the errors were measured on.
    """

    shifts: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    samples: int


@dataclass(frozen=True, kw_only=True)
class RoundingReport(BiasReport):
    """What ``adaround`` did.

    Attributes:
        errors: layer -> the error of its outputs with weights rounded to nearest, and as they are
            rounded now, over the outputs' power.
        skipped: quantized layer that keeps its weights -> the reason.
        resumed: number of layers taken from the state file.
    """

    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    resumed: int = 0


@dataclass(frozen=True, kw_only=True)
class EqualizationChoice:
    """A float model to quantize, and whether its channels were equalized.

    Attributes:
        model: the given model, or an equalized copy.
        applied: whether it is the copy.
        reason: what decided.
        errors: mean error of the outputs in INT8, relative to their mean square: as given, and
            equalized; None where the choice was not measured.
    """

    model: Any
    applied: bool
    reason: str
    errors: tuple[float, float] | None = None


class ChannelBias(Protocol):
    """A vector that moves a layer's output channels."""

    def saved(self) -> Callable[[], None]:
        """Return a function that puts the current values back."""

    def rows(self, tensor: Any) -> np.ndarray:
        """Return a tensor as float32 ``(positions, channels)``."""

    def subtract(self, shift: np.ndarray) -> None:
        """Subtract a shift of each channel from the bias, in place."""

    def moved(self, tensor: Any, shift: np.ndarray) -> Any:
        """Return a tensor with each channel's shift subtracted."""


class ChannelBiases(Protocol):
    """Finds the biases of a framework's layers."""

    def problem(self, call: Any) -> str:
        """Return why a weighted layer has no channels to correct, or nothing."""

    def of_layer(self, call: Any) -> ChannelBias | None:
        """Return the bias of a weighted layer, if any."""

    def of_normalization(self, call: Any) -> ChannelBias | None:
        """Return the moving mean of a batch normalization; None for other calls."""


class BiasCorrection:
    """Corrects each layer when it is visited."""

    def __init__(
        self,
        graph: CallGraph,
        biases: ChannelBiases,
        on_layer: Callable[[int, int], None] | None,
    ) -> None:
        self._biases = biases
        self._on_layer = on_layer
        self._done = 0
        self.shifts: dict[str, float] = {}
        self.skipped: dict[str, str] = {}
        self._restore: list[Callable[[], None]] = []
        self.corrected: set[str] = set()
        """Layers whose mean error is taken out."""
        self._targets: dict[str, tuple[str, ChannelBias]] = {}
        """Call whose outputs show the error -> the layer that it is of, and its bias."""
        for call in graph.calls:
            if call.traits.existing is not None and call.traits.existing.weights:
                self._plan(graph, call)
        self.corrected.update(layer for layer, _ in self._targets.values())

    def _plan(self, graph: CallGraph, call: GraphCall) -> None:
        """Choose what to correct a quantized layer by."""
        if len(graph.calls_of(call.layer)) > 1:
            self.skipped[call.layer] = "it is called more than once"
        elif len(call.outputs) != 1:
            self.skipped[call.layer] = "it has more than one output"
        elif "weighted" not in call.traits.roles:
            self.skipped[call.layer] = "what its weights add to its outputs is not known"
        elif problem := self._biases.problem(call):
            self.skipped[call.layer] = problem
        elif (bias := self._biases.of_layer(call)) is not None:
            self._targets[call.name] = (call.layer, bias)
        elif (found := self._normalization_behind(graph, call)) is not None:
            norm, beta = found
            self._targets[norm.name] = (call.layer, beta)
        else:
            self.skipped[call.layer] = "it has no bias, nor a BatchNormalization right behind it"

    def _normalization_behind(
        self, graph: CallGraph, call: GraphCall
    ) -> tuple[GraphCall, ChannelBias] | None:
        """Return the normalization that alone reads the call, and its bias."""
        readers = graph.consumers(call.outputs[0])
        if len(readers) != 1 or call.outputs[0] in graph.outputs or call.traits.own_activation:
            return None
        norm = readers[0][0]
        beta = self._biases.of_normalization(norm)
        is_alone = len(graph.calls_of(norm.layer)) == 1
        return (norm, beta) if is_alone and beta is not None else None

    def visit(
        self, call: GraphCall, outputs: tuple[BothForms, ...]
    ) -> tuple[BothForms, ...] | None:
        """Correct the layer, if any, whose error the outputs of ``call`` show."""
        if call.name not in self._targets:
            return None
        layer, bias = self._targets[call.name]
        (pair,) = outputs
        shift, spread = _mean_error(pair, bias)
        if not np.all(np.isfinite(shift)):
            self.skipped[layer] = "its outputs are not finite"
            return None
        self._restore.append(bias.saved())
        bias.subtract(shift)
        self.shifts[layer] = float(np.max(np.abs(shift) / np.maximum(spread, 1e-12)))
        self._done += 1
        if self._on_layer is not None:
            self._on_layer(self._done, len(self._targets))
        moved = [bias.moved(x, shift) for x in pair.quantized]
        return (BothForms(float=pair.float, quantized=moved),)

    def run(self, run_model: Callable[[Visit], float]) -> None:
        """Correct all layers, unless that increases the error of the model's outputs.

        Each layer's own error falls on average, yet errors that cancelled one another in the layers
        behind may not do so any more.

        Args:
            run_model: runs the model with ``visit`` on the samples, and returns ``output_error``.
        """
        before = run_model(lambda *_: None)
        after = run_model(self.visit)
        if not after > before:
            return
        for restore in reversed(self._restore):
            restore()
        reason = f"correction raises the error of the outputs from {before:.3g} to {after:.3g}"
        self.skipped.update(dict.fromkeys(self.shifts, reason))
        self.corrected -= self.shifts.keys()
        self.shifts.clear()

    def report(self, batches: Sequence[Any]) -> BiasReport:
        """Return what was done, on these batches."""
        return BiasReport(
            shifts=self.shifts,
            skipped=self.skipped,
            samples=sum(count_samples(batch) for batch in batches),
        )


def output_error(outputs: Sequence[BothForms], as_array: Callable[[Any], np.ndarray]) -> float:
    """Return the squared error of a model's outputs over their squares in float.

    Args:
        outputs: the outputs; several add their shares.
        as_array: turns one batch of an output into an array of floats.
    """
    total = 0.0
    for pair in outputs:
        error = power = 0.0
        for in_float, quantized in zip(pair.float, pair.quantized, strict=True):
            expected = as_array(in_float).astype(np.float64)
            error += float(np.sum((as_array(quantized) - expected) ** 2))
            power += float(np.sum(expected**2))
        total += error / max(power, 1e-30)
    return total


def _mean_error(pair: BothForms, bias: ChannelBias) -> tuple[np.ndarray, np.ndarray]:
    """Return each channel's trimmed mean error and float spread.

    The spread is that of its values in float.
    """
    errors, values = [], []
    for in_float, quantized in zip(pair.float, pair.quantized, strict=True):
        values.append(_sampled(bias.rows(in_float), len(pair.float)))
        errors.append(_sampled(bias.rows(quantized), len(pair.float)) - values[-1])
    error = np.concatenate(errors)
    cut = int(len(error) * TRIM)
    if cut:
        last = len(error) - cut
        error = np.partition(error, (cut, last - 1), axis=0)[cut:last]
    return error.mean(axis=0), np.concatenate(values).std(axis=0)


def _sampled(rows: np.ndarray, batches: int) -> np.ndarray:
    """Return evenly spaced positions of a tensor, as (positions, channels)."""
    return rows[:: max(1, len(rows) * batches // POSITIONS)]


def mean_shift(shift: np.ndarray, gamma: Any, variance: np.ndarray, epsilon: float) -> np.ndarray:
    """Return what a batch normalization's mean moves by to lower its outputs by ``shift``.

    The mean is corrected, not the beta: training takes the mean of each batch, which has the error
    of quantization in it, and a corrected beta would take it out a second time. A channel whose
    gamma is 0 has a constant output, without an error.
    """
    slope = gamma / np.sqrt(variance + epsilon)
    moved: np.ndarray = np.divide(shift, slope, out=np.zeros_like(shift), where=slope != 0)
    return moved
