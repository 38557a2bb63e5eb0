"""calibrate: set each range from the values observed with quantization off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.calibrators.batches import BatchReader
from qat_lib.calibrators.calibration import Calibration
from qat_lib.calibrators.methods import chosen_method
from qat_lib.calibrators.report import CalibrationReport
from qat_lib.errors import CalibrationError
from qat_lib.keras.calibration.kernels import keras_gains
from qat_lib.keras.calibration.limits import channel_limits
from qat_lib.keras.calibration.observing import ModelCalls, TensorHistograms
from qat_lib.keras.quantizers import model_quantizers


def calibrate(
    model: Any,
    data: Any,
    method: str | None = None,
    *,
    percentile: float | None = None,
    batch_size: int = 32,
    freeze: bool = True,
    on_batch: Callable[[int], None] | None = None,
) -> CalibrationReport:
    """Set activation ranges from data, and weight ranges from the weights.

    Args:
        model: a quantized model; its ranges are set in place.
        data: batches of inputs (an iterable, a tf.data.Dataset), each an array, a list or dict of
            arrays where the model has several inputs, or a tuple whose first item is one of these;
            or all samples at once, as one array ``(samples, ...)`` or a list or dict of them, cut
            into batches of ``batch_size``.
        method: ``"max"``, ``"percentile"``, ``"entropy"``, ``"mse"`` or ``"auto"``, which takes for
            each tensor the range with the least squared error in the outputs of the layers that
            read it. Default: ``"auto"``, or ``"percentile"`` where a percentile is given. A
            quantizer with a calibrator of its own uses that.
        percentile: for ``"percentile"``, in (0, 100]. Default 99.99.
        batch_size: size of the batches that an array is cut into.
        freeze: whether ranges stay as calibrated while the model trains. Default True, as NVIDIA's
            QAT guide advises.
        on_batch: called with the number of batches done.

    Returns:
        What was seen of each tensor.

    Raises:
        CalibrationError: the model has no quantizer, the data is empty, or values are not finite.
    """
    method, percentile = chosen_method(method, percentile)
    quantizers = model_quantizers(model)
    if not quantizers:
        raise CalibrationError(
            f"The model {model.name!r} has no quantizer: pass it through quantize_model first."
        )
    reader = BatchReader(inputs=len(model.inputs), is_array=_is_array, convert=tf.convert_to_tensor)
    batches = reader.batches(data, batch_size)
    calibration = Calibration(
        quantizers=quantizers,
        method=method,
        percentile=percentile,
        freeze=freeze,
        limits=channel_limits(model),
    )
    histograms = TensorHistograms(keras_gains(model) if calibration.needs_gains else None)
    call_model = ModelCalls(model, histograms)
    return calibration.run(histograms, batches, call_model, on_batch)


def _is_array(data: Any) -> bool:
    return isinstance(data, np.ndarray) or bool(tf.is_tensor(data))
