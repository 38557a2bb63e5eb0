"""Compare an exported ONNX file with its Keras model, output by output or layer by layer.

ONNX Runtime runs with all optimizations off: it is the numeric reference, so that a difference is
the export's and not an optimizer's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import ExportError
from qat_lib.export.keras_reference import KerasReference, batches, nudged
from qat_lib.export.metadata import Recorded
from qat_lib.export.parity_report import LayerDifference, ParityReport
from qat_lib.export.session import ReferenceSession
from qat_lib.onnx_view.bounds import check_bounds
from qat_lib.onnx_view.loading import load_onnx
from qat_lib.onnx_view.metadata import read_metadata, read_names

FLOAT_TOLERANCE = 1e-4
"""Largest allowed difference of a model without quantizers, relative to the largest output (float
rounding)."""
HALF_TOLERANCE = 2e-2
"""The same where what is not quantized is float16."""
FLOAT_STEP = 1e-5
"""Part of the largest logit below which two logits of a model without quantizers are a tie."""


def check_parity(
    model: Any,
    path: str | os.PathLike[str],
    data: Any,
    *,
    layers: bool = False,
    batch_size: int = 32,
) -> ParityReport:
    """Compare ``path`` with the Keras ``model`` on ``data``.

    Args:
        model: the Keras model that was exported.
        path: the ONNX file.
        data: inputs as Keras takes them (for an export with embedded preprocessing: raw images): an
            array, a list of arrays or a dict of arrays for several inputs, or an iterable of such
            batches.
        layers: whether to compare every layer's output too, to see where a difference starts.
            Default False.
        batch_size: samples at a time. Default 32.

    Returns:
        The report; ``report.passed`` is the verdict.

    Raises:
        ExportError: ONNX Runtime can't run the file, its outputs have other shapes, or there are no
            data.

    Examples:
        >>> import numpy as np
        >>> from qat_lib import check_parity, load_model
        >>> images = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype("float32")
        >>> check_parity(load_model("model.keras"), "model.onnx", images).passed
        True
    """
    path = Path(path)
    proto = load_onnx(path)
    check_bounds(path, proto)
    metadata = read_metadata(proto)
    tensors = read_names(metadata, "tensors") if layers else {}
    reference = KerasReference(model, list(tensors))
    tensors = {layer: tensors[layer] for layer in reference.layers}
    session = ReferenceSession(
        path, extra_outputs=tuple(dict.fromkeys(tensors.values())), metadata=metadata
    )
    comparison = _Comparison()
    for batch in batches(
        model, data, session.fixed_batch or batch_size, whole=session.fixed_batch is not None
    ):
        inputs = session.keras_inputs(batch)
        expected = reference.run(inputs)
        received = session.run(batch)
        rows = comparison.add(expected, received, len(reference.model_outputs))
        if rows.size:
            moved = reference.run([nudged(x[rows]) for x in inputs])
            comparison.add_noise([y[rows] for y in expected], moved)
        for layer, value in zip(
            reference.layers, expected[len(reference.model_outputs) :], strict=True
        ):
            comparison.add_layer(layer, tensors[layer], value, session.extra(tensors[layer]))
    recorded = (
        Recorded.from_json(metadata["quantizers"]) if "quantizers" in metadata else Recorded()
    )
    float_tolerance = HALF_TOLERANCE if recorded.half or comparison.half else FLOAT_TOLERANCE
    tolerance = None if recorded.activations else float_tolerance
    return comparison.report(tolerance)


@dataclass
class _Difference:
    """How far arrays are from what was expected, and how large that is, over the batches."""

    largest: float = 0.0
    total: float = 0.0
    count: int = 0
    magnitude: float = 0.0

    def add(self, expected: np.ndarray, received: np.ndarray) -> None:
        """Take in one batch; what is not a number stays in ``largest``."""
        difference = np.abs(expected.astype(np.float64) - received.astype(np.float64))
        self.largest = float(difference.max(initial=self.largest))
        self.total += float(difference.sum())
        self.count += difference.size
        self.magnitude = float(np.abs(expected).max(initial=self.magnitude))

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)


@dataclass
class _Comparison:
    """Collects differences over the batches."""

    samples: int = 0
    outputs: _Difference = field(default_factory=_Difference)
    equal: int | None = None
    margins: list[float] = field(default_factory=list)
    largest_logit: float = 0.0
    noise: float = 0.0
    half: bool = False
    layers: dict[str, tuple[str, _Difference]] = field(default_factory=dict)

    def add(
        self, expected: list[np.ndarray], received: list[np.ndarray], outputs: int
    ) -> np.ndarray:
        """Take in one batch; return the rows whose label differs."""
        differing = [np.empty(0, np.intp)]
        first, *_ = expected
        self.samples += len(first)
        if len(received) != outputs:
            raise ExportError(
                f"Expected {outputs} outputs as in Keras. ONNX gives {len(received)}. "
                "Compare the file with the model that it was exported from."
            )
        for keras_output, onnx_output in zip(expected, received, strict=False):
            if keras_output.shape != onnx_output.shape:
                raise ExportError(
                    f"Expected an output of shape {keras_output.shape} as in Keras. ONNX gives "
                    f"{onnx_output.shape}. "
                    "Compare the file with the model that it was exported from."
                )
            self.half |= keras_output.dtype == np.float16
            self.outputs.add(keras_output, onnx_output)
            if keras_output.ndim == 2 and keras_output.shape[1] > 1:
                differing.append(self._add_labels(keras_output, onnx_output))
        return np.unique(np.concatenate(differing))

    def _add_labels(self, expected: np.ndarray, received: np.ndarray) -> np.ndarray:
        logits = _logits(expected)
        self.largest_logit = float(np.abs(logits).max(initial=self.largest_logit))
        label, other = expected.argmax(axis=1), received.argmax(axis=1)
        self.equal = (self.equal or 0) + int((label == other).sum())
        rows = np.flatnonzero(label != other)
        self.margins += [float(m) for m in logits[rows, label[rows]] - logits[rows, other[rows]]]
        return rows

    def add_noise(self, expected: list[np.ndarray], nudged: list[np.ndarray]) -> None:
        """Take in what a change of the input by float rounding did to Keras's outputs."""
        for before, after in zip(expected, nudged, strict=True):
            if before.ndim == 2 and before.shape[1] > 1:
                self.noise = float(np.abs(_logits(before) - _logits(after)).max(initial=self.noise))

    def add_layer(
        self, layer: str, tensor: str, expected: np.ndarray, received: np.ndarray
    ) -> None:
        """Take in the output of one layer."""
        # The tensor may lie in either order of axes: the one that fits is meant.
        orders = [received]
        if received.ndim > 2:
            orders.append(np.moveaxis(received, 1, -1))
        if {received.ndim, expected.ndim} == {4}:
            candidates = [x for x in orders if x.shape == expected.shape]
        else:
            candidates = [x.reshape(expected.shape) for x in orders if x.size == expected.size]
        if candidates:
            best = min(
                candidates, key=lambda x: float(np.abs(x.astype(np.float64) - expected).sum())
            )
            self.layers.setdefault(layer, (tensor, _Difference()))[1].add(expected, best)

    def report(self, tolerance: float | None) -> ParityReport:
        """Return the verdict over all batches."""
        if not self.samples:
            raise ExportError(
                "Expected at least one sample to compare ONNX with Keras. Received none."
            )
        step = self.largest_logit * (1 / 127 if tolerance is None else FLOAT_STEP)
        # Two logits may each move by the noise, in opposite directions.
        ties = sum(margin <= step + 2 * self.noise for margin in self.margins)
        return ParityReport(
            samples=self.samples,
            largest_difference=self.outputs.largest,
            mean_difference=self.outputs.mean,
            magnitude=self.outputs.magnitude,
            labels_equal=self.equal,
            ties=ties,
            mismatches=len(self.margins) - ties,
            step=step,
            noise=self.noise,
            tolerance=tolerance,
            layers=tuple(starmap(_layer_difference, self.layers.items())),
        )


def _layer_difference(layer: str, found: tuple[str, _Difference]) -> LayerDifference:
    tensor, difference = found
    return LayerDifference(
        layer=layer,
        tensor=tensor,
        largest=difference.largest,
        mean=difference.mean,
        magnitude=difference.magnitude,
    )


def _logits(outputs: np.ndarray) -> np.ndarray:
    """Return logits: the outputs themselves, or for probabilities their centred logarithms."""
    rows = outputs.astype(np.float64)
    if not (np.all(rows >= 0) and np.all(np.abs(rows.sum(axis=1) - 1.0) < 1e-3)):
        return rows
    logits = np.log(np.maximum(rows, np.finfo(np.float32).tiny))
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))
