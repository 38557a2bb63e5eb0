"""Bias correction: subtract the mean quantization error of each channel from the bias.

Source: Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction"
(https://arxiv.org/abs/1906.04721), the empirical form (appendix D): each layer is corrected for the
errors that remain after all layers in front of it. If a batch normalization follows a layer, the
mean of the normalization is corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from qat_lib.calibrators.batches import count_samples
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.lockstep.steps import BothForms, Form, Visit

TRIM = 0.05
"""Share of a channel's errors excluded from their mean, at each end.

A range that clips outliers causes a few large errors, and a constant can't correct them: with the
plain mean instead of the trimmed one, MobileNetV2 is less accurate than without correction."""
POSITIONS = 4096
"""Greatest number of positions of a channel in its mean."""
MEMORY = 2**29
"""Limit of the bytes in the tensors of all samples.

For MobileNetV2 with 224 pixels, it leaves 27 samples. With 8192 positions and 1 GiB, a correction
took twice as long, and the divergence from FP32 was the same."""


@dataclass(frozen=True, kw_only=True)
class BiasReport:
    """Result of a bias correction.

    Attributes:
        shifts: layer -> the greatest shift of one of its channels, in units of the spread of that
            channel's outputs.
        skipped: quantized layer without a correction -> the reason.
        samples: number of samples in the measurement of the errors.
    """

    shifts: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    samples: int


@dataclass(frozen=True, kw_only=True)
class RoundingReport(BiasReport):
    """Result of ``adaround``.

    Attributes:
        errors: layer -> the error of its outputs with weights rounded to nearest, and with the
            learned rounding, over the power of the outputs.
        skipped: quantized layer with unchanged weights -> the reason.
        resumed: number of layers taken from the state file.
    """

    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    resumed: int = 0


@dataclass(frozen=True, kw_only=True)
class EqualizationChoice:
    """A float model to quantize, with or without equalized channels.

    Attributes:
        model: the given model, or an equalized copy.
        applied: whether ``model`` is the copy.
        reason: reason for the choice.
        errors: mean error of the outputs in INT8, relative to their mean square: as given, and
            equalized; None if the choice was not measured.
    """

    model: Any
    applied: bool
    reason: str
    errors: tuple[float, float] | None = None


class ChannelBias(Protocol):
    """A vector added to a layer's output channels."""

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the current values."""

    def rows(self, tensor: Any) -> np.ndarray:
        """Return a tensor as float32 ``(positions, channels)``."""

    def subtract(self, shift: np.ndarray) -> None:
        """Subtract a shift of each channel from the bias, in place."""

    def moved(self, tensor: Any, shift: np.ndarray) -> Any:
        """Return a tensor with each channel's shift subtracted."""


class ChannelBiases(Protocol):
    """Framework-specific access to the biases of layers."""

    def problem(self, call: Any) -> str:
        """Return the reason against correcting a weighted layer, or an empty string."""

    def of_layer(self, call: Any) -> ChannelBias | None:
        """Return the bias of a weighted layer, if any."""

    def of_normalization(self, call: Any) -> ChannelBias | None:
        """Return the moving mean of a batch normalization; None for other calls."""


class BiasCorrection:
    """Correction of each quantized layer on a visit."""

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
        # Names of the corrected layers.
        self.corrected: set[str] = set()
        # Call with the measured outputs -> the corrected layer and its bias.
        self._targets: dict[str, tuple[str, ChannelBias]] = {}
        for call in graph.calls:
            if call.traits.existing is not None and call.traits.existing.weights:
                self._plan(graph, call)
        self.corrected.update(layer for layer, _ in self._targets.values())

    def _plan(self, graph: CallGraph, call: GraphCall) -> None:
        """Choose the bias of a quantized layer, or record the reason against a correction."""
        if len(graph.calls_of(call.layer)) > 1:
            # One bias serves all calls, and each call has its own error.
            self.skipped[call.layer] = "it is called more than once"
        elif len(call.outputs) != 1:
            self.skipped[call.layer] = "it has more than one output"
        elif "weighted" not in call.traits.roles:
            self.skipped[call.layer] = "the effect of its weights on its outputs is not known"
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
        """Return the normalization that is the only reader of the call, and its bias."""
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
        """Correct the layer measured at the outputs of ``call``, if any."""
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
        # The outputs are corrected like the bias, so that later layers are measured after this
        # correction.
        moved = [bias.moved(x, shift) for x in pair.quantized]
        return (BothForms(float=pair.float, quantized=moved),)

    def run(
        self,
        run_model: Callable[[Visit, Form], list[BothForms]],
        as_array: Callable[[Any], np.ndarray],
    ) -> None:
        """Correct all layers, unless that increases the error of the model's outputs.

        Each layer's own error decreases on average, but errors that cancelled in later layers may
        no longer cancel.

        Args:
            run_model: runs the model on the samples and returns its outputs; see ``run_steps``.
            as_array: converts one batch of an output to an array of floats.
        """
        uncorrected = run_model(lambda *_: None, "quantized")
        corrected = run_model(self.visit, "both")
        before = output_error(
            [
                BothForms(float=output.float, quantized=earlier.quantized)
                for output, earlier in zip(corrected, uncorrected, strict=True)
            ],
            as_array,
        )
        after = output_error(corrected, as_array)
        # Also keeps the correction if an error is NaN.
        if not after > before:
            return
        # In reverse order, so that a value changed twice gets its first state.
        for restore in reversed(self._restore):
            restore()
        reason = f"correction raises the error of the outputs from {before:.3g} to {after:.3g}"
        self.skipped.update(dict.fromkeys(self.shifts, reason))
        self.corrected -= self.shifts.keys()
        self.shifts.clear()

    def report(self, batches: Sequence[Any]) -> BiasReport:
        """Return the report of the correction on these batches."""
        return BiasReport(
            shifts=self.shifts,
            skipped=self.skipped,
            samples=sum(count_samples(batch) for batch in batches),
        )


def output_error(outputs: Sequence[BothForms], as_array: Callable[[Any], np.ndarray]) -> float:
    """Return the squared error of a model's outputs over their squares in float.

    Args:
        outputs: the outputs; several add their shares.
        as_array: converts one batch of an output to an array of floats.
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
    """Return the trimmed mean error and the float spread of each channel."""
    errors, values = [], []
    for in_float, quantized in zip(pair.float, pair.quantized, strict=True):
        values.append(_sampled(bias.rows(in_float), len(pair.float)))
        errors.append(_sampled(bias.rows(quantized), len(pair.float)) - values[-1])
    # A whole sort of contiguous channels takes half the time of a partial sort along the first axis.
    error = np.sort(np.ascontiguousarray(np.concatenate(errors).T), axis=1)
    cut = int(error.shape[1] * TRIM)
    trimmed = error[:, cut : error.shape[1] - cut]
    return trimmed.mean(axis=1), np.concatenate(values).std(axis=0)


def _sampled(rows: np.ndarray, batches: int) -> np.ndarray:
    """Return evenly spaced positions of a tensor, as (positions, channels)."""
    return rows[:: max(1, len(rows) * batches // POSITIONS)]


def mean_shift(shift: np.ndarray, gamma: Any, variance: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the change of a batch normalization's mean that lowers its outputs by ``shift``.

    The mean is corrected instead of beta: training uses the mean of each batch, including the
    quantization error, and a corrected beta would subtract that error twice. A channel with gamma 0
    has a constant output without an error.
    """
    slope = gamma / np.sqrt(variance + epsilon)
    moved: np.ndarray = np.divide(shift, slope, out=np.zeros_like(shift), where=slope != 0)
    return moved
