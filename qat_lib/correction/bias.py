"""Bias correction: remove quantization's mean error from each layer's bias.

Source: Nagel et al. 2019, "Data-free quantization through weight equalization and bias correction"
(https://arxiv.org/abs/1906.04721), the empirical form (appendix D): each layer is corrected on the
errors that are left once all layers in front of it are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.batches import count_samples
from qat_lib.correction.lockstep import BothForms, read_samples, run_lockstep
from qat_lib.errors import CalibrationError
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.quantize import model_quantizers

logger = logging.getLogger("qat_lib")

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


def correct_bias(
    model: Any,
    data: Any,
    *,
    samples: int = 64,
    batch_size: int = 32,
    on_layer: Callable[[int, int], None] | None = None,
) -> BiasReport:
    """Correct biases for the mean error that quantization causes.

    Rounded weights and clipped activations move the mean of a layer's outputs. The correction
    compares the quantized model with its float form, layer after layer, and moves the layer's bias,
    or the beta of the BatchNormalization behind it, back. It stands in the model's own weights, so
    that Keras, ONNX and engine agree.

    Args:
        model: a quantized and calibrated Keras model; it is changed in place.
        data: calibration data in any form that ``calibrate`` takes.
        samples: number of samples to measure on, taken from the start; fewer where their tensors
            would take more than 1 GiB. Default 64.
        batch_size: size of the batches that an array is cut into. Default 32.
        on_layer: called with the number of layers done, and of all.

    Returns:
        The shift of each layer.

    Raises:
        CalibrationError: the model has no quantizer, there is no data, or ``samples`` is
            below 1.
        UnsupportedModelError: the model has no graph of layers.
    """
    if not model_quantizers(model):
        raise CalibrationError(
            f"The model {model.name!r} has no quantizer: pass it through quantize_model and "
            "calibrate first."
        )
    graph = LayerGraph(model)
    batches = read_samples(graph, data, samples, batch_size)
    correction = BiasCorrection(graph, on_layer)
    run_lockstep(graph, batches, correction.visit)
    return BiasReport(
        shifts=correction.shifts,
        skipped=correction.skipped,
        samples=sum(count_samples(batch) for batch in batches),
    )


class BiasCorrection:
    """Corrects each layer when it is visited."""

    def __init__(self, graph: LayerGraph, on_layer: Callable[[int, int], None] | None) -> None:
        self._on_layer = on_layer
        self._done = 0
        self.shifts: dict[str, float] = {}
        self.skipped: dict[str, str] = {}
        self.corrected: set[str] = set()
        """Layers whose mean error is taken out."""
        self._targets: dict[str, tuple[str, Any]] = {}
        """Call whose outputs show the error -> the layer that it is of, and the variable."""
        for call in graph.calls:
            if call.traits.existing is not None and call.traits.existing.weights:
                self._plan(graph, call)
        self.corrected.update(layer for layer, _ in self._targets.values())

    def _plan(self, graph: LayerGraph, call: Call) -> None:
        """Choose what to correct a quantized layer by."""
        if len(graph.calls_of(call.layer)) > 1:
            self.skipped[call.layer] = "it is called more than once"
        elif len(call.outputs) != 1:
            self.skipped[call.layer] = "it has more than one output"
        elif "weighted" not in call.traits.roles:
            self.skipped[call.layer] = "what its weights add to its outputs is not known"
        elif getattr(call.core, "data_format", None) == "channels_first":
            self.skipped[call.layer] = "its channels are not the last axis"
        elif (bias := _bias(call.core)) is not None:
            self._targets[call.name] = (call.layer, bias)
        elif (norm := _normalization_behind(graph, call)) is not None:
            self._targets[norm.name] = (call.layer, norm.core.beta)
        else:
            self.skipped[call.layer] = "it has no bias, nor a BatchNormalization right behind it"

    def visit(self, call: Call, outputs: tuple[BothForms, ...]) -> tuple[BothForms, ...] | None:
        """Correct the layer, if any, whose error the outputs of ``call`` show."""
        if call.name not in self._targets:
            return None
        layer, variable = self._targets[call.name]
        (pair,) = outputs
        shift, spread = _mean_error(pair)
        if not np.all(np.isfinite(shift)):
            self.skipped[layer] = "its outputs are not finite"
            return None
        variable.assign(variable.value - tf.cast(shift, variable.dtype))
        self.shifts[layer] = float(np.max(np.abs(shift) / np.maximum(spread, 1e-12)))
        self._done += 1
        if self._on_layer is not None:
            self._on_layer(self._done, len(self._targets))
        moved = [x - tf.cast(shift, x.dtype) for x in pair.quantized]
        return (BothForms(float=pair.float, quantized=moved),)


def _bias(layer: Any) -> Any:
    """Return the bias added to a layer's output channels, or None."""
    bias = getattr(layer, "bias", None)
    is_per_channel = isinstance(bias, keras.Variable) and len(bias.shape) == 1
    return bias if is_per_channel and not hasattr(layer, "cell") else None


def _normalization_behind(graph: LayerGraph, call: Call) -> Call | None:
    """Return the BatchNormalization with a beta that alone reads the call's output."""
    readers = graph.consumers(call.outputs[0])
    if len(readers) != 1 or call.outputs[0] in graph.outputs or call.traits.own_activation:
        return None
    norm = readers[0][0]
    if not isinstance(norm, Call) or not isinstance(norm.core, keras.layers.BatchNormalization):
        return None
    is_alone = len(graph.calls_of(norm.layer)) == 1
    along_channels = norm.core.axis in (-1, len(graph.shapes[norm.outputs[0]]) - 1)
    return norm if is_alone and along_channels and norm.core.center else None


def _mean_error(pair: BothForms) -> tuple[np.ndarray, np.ndarray]:
    """Return each channel's trimmed mean error and float spread.

    The spread is that of its values in float.
    """
    errors, values = [], []
    for in_float, quantized in zip(pair.float, pair.quantized, strict=True):
        values.append(_sampled(in_float, len(pair.float)))
        errors.append(_sampled(quantized, len(pair.float)) - values[-1])
    error = np.concatenate(errors)
    cut = int(len(error) * TRIM)
    if cut:
        last = len(error) - cut
        error = np.partition(error, (cut, last - 1), axis=0)[cut:last]
    return error.mean(axis=0), np.concatenate(values).std(axis=0)


def _sampled(tensor: Any, batches: int) -> np.ndarray:
    """Return evenly spaced positions of a tensor, as (positions, channels)."""
    rows = tf.reshape(tf.cast(tensor, tf.float32), (-1, tensor.shape[-1]))
    step = max(1, len(rows) * batches // POSITIONS)
    return np.asarray(rows[::step].numpy())
