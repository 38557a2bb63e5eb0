"""calibrate: set each range from the values observed with quantization off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibration.histogram import Histogram
from qat_lib.calibrators.methods import check_method, range_from_histogram
from qat_lib.errors import CalibrationError
from qat_lib.quantize import model_quantizers
from qat_lib.quantizers import TensorQuantizer, collecting

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """What calibration saw of one tensor, and the range that it chose."""

    amax: float
    observed_max: float
    method: str
    values: int
    counts: np.ndarray | None = field(default=None, repr=False)
    edges: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationReport:
    """The statistics of every calibrated quantizer, by name."""

    tensors: dict[str, TensorStatistics]
    batches: int
    samples: int

    def __repr__(self) -> str:
        """Return the report in a line."""
        return f"<CalibrationReport: {len(self.tensors)} tensors, {self.samples} samples>"


class _Histograms:
    """One histogram for each quantizer; a shared one gets all its tensors."""

    def __init__(self) -> None:
        self.found: dict[str, Histogram] = {}
        self.cut: set[str] = set()
        self.not_finite: str | None = None

    def observe(self, quantizer: TensorQuantizer, tensor: Any) -> None:
        if quantizer.range_policy == "current" or quantizer.of_weight or tf.size(tensor) == 0:
            return
        magnitude = quantizer.magnitude(tensor)
        if quantizer.unsigned and quantizer.name not in self.cut and tf.reduce_min(tensor) < 0:
            self.cut.add(quantizer.name)
        largest = float(tf.reduce_max(magnitude))
        if not np.isfinite(largest):
            self.not_finite = self.not_finite or quantizer.name
            return
        self.found.setdefault(quantizer.name, Histogram()).add(magnitude, largest)


def calibrate(
    model: Any,
    data: Any,
    method: str = "percentile",
    *,
    percentile: float = 99.99,
    batch_size: int = 32,
    freeze: bool = True,
    on_batch: Callable[[int], None] | None = None,
) -> CalibrationReport:
    """Set the range of every activation quantizer from data, and those of weights from the weights.

    Args:
        model: a quantized model; its ranges are set in place.
        data: batches of inputs (an iterable, a tf.data.Dataset), each an array, a list or dict of
            arrays where the model has several inputs, or a tuple whose first item is one of these;
            or all samples at once, as one array ``(samples, ...)`` or a list or dict of them, cut
            into batches of ``batch_size``.
        method: ``"max"``, ``"percentile"`` (default), ``"entropy"`` or ``"mse"``; a quantizer with
            a calibrator of its own uses that.
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
    check_method(method, percentile)
    quantizers = model_quantizers(model)
    if not quantizers:
        raise CalibrationError(
            f"The model {model.name!r} has no quantizer: pass it through quantize_model first."
        )
    histograms = _Histograms()
    batches = samples = 0
    with collecting(histograms):
        for x in _batches(data, batch_size, len(model.inputs)):
            model(x, training=False)
            # Not raised within the call, where Keras adds its own text to a message.
            if histograms.not_finite is not None:
                raise CalibrationError(
                    f"The tensor of quantizer {histograms.not_finite!r} has NaN or infinite "
                    "values. "
                    "Check the calibration data and the model: its FP32 outputs must be finite."
                )
            batches += 1
            samples += _samples(x)
            if on_batch is not None:
                on_batch(batches)
    if samples == 0:
        raise CalibrationError("The calibration data is empty: give at least one batch.")
    if histograms.cut:
        logger.warning(
            "Unsigned quantizers saw negative values, which they turn into 0: %d of them, such as "
            "%s. "
            "Unless that is meant, quantize these tensors with unsigned=False.",
            len(histograms.cut),
            min(histograms.cut),
        )
    for quantizer in quantizers.values():
        if quantizer.of_weight:
            quantizer.fit_weight()
    report = {}
    for name, histogram in histograms.found.items():
        quantizer = quantizers[name]
        chosen = quantizer.calibrator or method
        quantizer.amax = range_from_histogram(
            histogram, chosen, percentile, quantizer.num_bits, unsigned=quantizer.unsigned
        )
        if freeze:
            quantizer.freeze()
        report[name] = TensorStatistics(
            amax=float(quantizer.amax),
            observed_max=histogram.observed_max,
            method=chosen,
            values=int(histogram.counts.sum()),
            counts=histogram.counts,
            edges=histogram.edges,
        )
    return CalibrationReport(tensors=report, batches=batches, samples=samples)


def _batches(data: Any, batch_size: int, inputs: int) -> Iterator[Any]:
    """Yield batches as the model takes them: a tensor, or a list or dict of tensors."""
    whole = _is_array(data) or (
        isinstance(data, Mapping) and len(data) and all(map(_is_array, data.values()))
    )
    if whole or _is_one_for_each(data, inputs):
        parts = keras.tree.flatten(data)
        if len({len(part) for part in parts}) > 1:
            raise CalibrationError(
                "Expected as many samples for each input. Received: "
                f"{', '.join(str(len(part)) for part in parts)}."
            )
        for start in range(0, len(parts[0]), batch_size):
            yield keras.tree.map_structure(
                lambda x, i=start: tf.convert_to_tensor(x[i : i + batch_size]), data
            )
        return
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise CalibrationError(
            f"Expected arrays or an iterable of batches. Received: {type(data).__name__}."
        )
    for batch in data:
        alone = not isinstance(batch, (tuple, list)) or _is_one_for_each(batch, inputs)
        yield batch if alone else batch[0]


def _is_array(data: Any) -> bool:
    return isinstance(data, np.ndarray) or bool(tf.is_tensor(data))


def _is_one_for_each(data: Any, inputs: int) -> bool:
    """Whether data is a list of arrays, one for each of several inputs."""
    return (
        isinstance(data, (tuple, list))
        and inputs > 1
        and len(data) == inputs
        and all(map(_is_array, data))
    )


def _samples(x: Any) -> int:
    first, *_ = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else [x]
    return int(np.shape(first)[0])
