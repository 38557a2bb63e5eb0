"""Whether a model is equalized: decided by the error of both quantized models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from qat_lib.keras.correction.equalization import equalize
from qat_lib.keras.correction.lockstep import read_samples
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.structure import pack_inputs
from qat_lib.lockstep.bias import EqualizationChoice

Quantize: TypeAlias = Callable[[Any, Sequence[Any]], Any]
"""Returns a quantized, calibrated copy of a float model, from batches of inputs."""
SAMPLES = 128


def choose_equalization(
    model: Any,
    data: Any,
    setting: Literal["auto"] | bool,
    quantize: Quantize,
    *,
    batch_size: int = 32,
) -> EqualizationChoice:
    """Return a float model for quantization, equalized where that lowers the error of INT8.

    With ``"auto"`` a model with depthwise convolutions is quantized twice, as it is and equalized,
    on one half of the first 128 samples. On the other half the outputs of both are compared with
    those in float. The equalized one is chosen if its error is lower by more than the standard
    error of the difference. Up to 32 samples in one batch serve as both halves.

    Args:
        model: a Functional or Sequential Keras model; it is not changed.
        data: calibration data in any form that ``calibrate`` takes.
        setting: ``"auto"``; True or False decide without a measurement.
        quantize: how the model is going to be quantized.
        batch_size: size of the batches that an array is cut into. Default 32.

    Raises:
        CalibrationError: there is no data.
        UnsupportedModelError: see ``qat_lib.equalize``.
    """
    if setting is not True and (setting is False or not _has_depthwise_in_float(model)):
        reason = "not asked for" if setting is False else "no depthwise convolution in float"
        return EqualizationChoice(model=model, applied=False, reason=reason)
    if setting is True:
        equal = equalize(model, data, batch_size=batch_size)
        return EqualizationChoice(model=equal, applied=True, reason="asked for")
    taken = read_samples(LayerGraph(model), data, SAMPLES, batch_size, together=False)
    batches = [pack_inputs(model, x if isinstance(x, list) else [x]) for x in taken]
    seen, unseen = batches[::2], batches[1::2] or batches
    equal = equalize(model, seen)
    expected = _outputs(model, unseen)
    plain = _errors(_outputs(quantize(model, seen), unseen), expected)
    scaled = _errors(_outputs(quantize(equal, seen), unseen), expected)
    gain = plain - scaled
    applied = bool(gain.mean() > gain.std() / math.sqrt(len(gain)))
    errors = float(plain.mean()), float(scaled.mean())
    reason = (
        f"error of the outputs in INT8 {errors[1]:.3g} equalized, {errors[0]:.3g} as it is, "
        f"on {len(gain)} samples"
    )
    chosen = equal if applied else model
    return EqualizationChoice(model=chosen, applied=applied, reason=reason, errors=errors)


def _has_depthwise_in_float(model: Any) -> bool:
    calls = LayerGraph(model, subclassed_within=True).calls
    if any(call.traits.existing is not None for call in calls):
        return False
    return any("depthwise" in call.traits.roles for call in calls)


def _outputs(model: Any, batches: Sequence[Any]) -> list[np.ndarray]:
    """Return each output for all batches: float32 ``(samples, values)``."""
    found = [keras.tree.flatten(model(batch, training=False)) for batch in batches]
    joined = []
    for parts in zip(*found, strict=True):
        values = np.concatenate([np.asarray(tf.cast(part, tf.float32)) for part in parts])
        joined.append(values.reshape(len(values), -1))
    return joined


def _errors(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> np.ndarray:
    """Return the error of each sample: squared, over the mean square of each output."""
    errors = []
    for output, reference in zip(outputs, expected, strict=True):
        power = max(float(np.mean(reference**2)), 1e-30)
        errors.append(np.mean((output - reference) ** 2, axis=1) / power)
    return np.asarray(np.mean(errors, axis=0))
