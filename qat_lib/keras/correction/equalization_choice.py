"""Choice for or against equalization, by the error of both quantized models."""

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
from qat_lib.keras.structure import pack_inputs, run_eagerly
from qat_lib.lockstep.bias import EqualizationChoice

Quantize: TypeAlias = Callable[[Any, Sequence[Any]], Any]
"""Returns a quantized and calibrated copy of a float model, given batches of inputs."""
SAMPLES = 64
"""Greatest number of samples. With half as many, the factors are worse, and some data leave MobileNetV2 as it is."""


def choose_equalization(
    model: Any,
    data: Any,
    setting: Literal["auto"] | bool,
    quantize: Quantize,
    *,
    batch_size: int = 32,
) -> EqualizationChoice:
    """Return a float model for quantization, equalized if this lowers the INT8 error.

    With ``"auto"``, a model with depthwise convolutions is quantized with and without equalization
    on one half of the first 64 samples. The outputs of both models are compared with the float
    outputs on the other half. Equalization is chosen if it lowers the error by more than the
    standard error of the difference. A single batch serves as both halves.

    Args:
        model: a Functional or Sequential Keras model; it is not modified.
        data: calibration data in any form accepted by ``calibrate``.
        setting: ``"auto"``, or True or False to decide without a measurement.
        quantize: quantizes a float model as in the final quantization.
        batch_size: batch size for array data. Default 32.

    Raises:
        CalibrationError: the data is empty.
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
    # Alternate batches, since data sorted by class would make halves in order differ.
    seen, unseen = batches[::2], batches[1::2] or batches
    equal = equalize(model, seen)
    expected = _outputs(model, unseen)
    plain = _errors(_outputs(quantize(model, seen), unseen), expected)
    scaled = _errors(_outputs(quantize(equal, seen), unseen), expected)
    # Paired by sample, since errors differ more between samples than between the two models.
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
    calls = LayerGraph(model).calls
    if any(call.traits.existing is not None for call in calls):
        return False
    return any("depthwise" in call.traits.roles for call in calls)


def _outputs(model: Any, batches: Sequence[Any]) -> list[np.ndarray]:
    """Return each output over all batches, as float32 ``(samples, values)``."""
    found = [keras.tree.flatten(run_eagerly(model, batch)) for batch in batches]
    joined = []
    for parts in zip(*found, strict=True):
        values = np.concatenate([np.asarray(tf.cast(part, tf.float32)) for part in parts])
        joined.append(values.reshape(len(values), -1))
    return joined


def _errors(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> np.ndarray:
    """Return the squared error of each sample, relative to the mean square of each output."""
    errors = []
    for output, reference in zip(outputs, expected, strict=True):
        power = max(float(np.mean(reference**2)), 1e-30)
        errors.append(np.mean((output - reference) ** 2, axis=1) / power)
    return np.asarray(np.mean(errors, axis=0))
