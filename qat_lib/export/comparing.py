"""Comparison of an exported ONNX file with its source model, of any framework.

ONNX Runtime runs without optimizations as the numeric reference, so that differences come from the
export instead of an optimizer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qat_lib.errors import ExportError, VerificationError
from qat_lib.export.metadata import Recorded
from qat_lib.export.parity_report import LayerDifference, ParityReport
from qat_lib.export.session import ReferenceSession
from qat_lib.onnx_view.bounds import check_bounds
from qat_lib.onnx_view.loading import load_onnx
from qat_lib.onnx_view.metadata import read_metadata, read_names
from qat_lib.support.answers import difference, nudged

FLOAT_TOLERANCE = 1e-4
"""Largest allowed difference of a value of a model without quantizers, relative to the largest output
(float rounding); widened by the same factor as ``FLOAT_BOUND``."""
HALF_TOLERANCE = 2e-2
"""``FLOAT_TOLERANCE`` for models with float16 layers."""
FLOAT_BOUND = 1e-3
"""Largest allowed difference of an output of a model without quantizers, as measured by
``qat_lib.support.answers``."""
HALF_BOUND = 5e-2
"""``FLOAT_BOUND`` for models with float16 layers; for a quantized file in float16 also
``FLOAT_TOLERANCE``."""
QUANTIZED_BOUND = 5e-2
"""``FLOAT_BOUND`` for quantized models.

Float rounding moves single values across a boundary between two integers: up to 0.03 in ResNet-50,
MobileNetV2 and DenseNet with random weights. Networks that amplify such changes have a wider bound:
twice the change of their own outputs for an input change by the largest of ``NUDGES``."""
NOISE_FACTOR = 2
"""Ratio of the wider bound to this change."""
NOISE_BOUND = 0.5
"""Upper limit of the wider bound."""
NUDGES = (2.0**-20, 2.0**-17, 2.0**-14)
"""Relative input changes for the measurement of noise, the least about eight units in the last
place of float32.

Images of 256 levels may lie so far from the boundaries between integers that the first quantizer
reverts the change, while float rounding moves values across boundaries in every later layer. For
quantized models, larger changes are therefore tried until the outputs change by a similar amount.
"""
FLOAT_STEP = 1e-5
"""Fraction of the largest logit below which two logits of a model without quantizers are a tie."""


class ParityReference(Protocol):
    """A model of some framework on batches, with float32 semantics."""

    @property
    def framework(self) -> str:
        """The framework's name."""

    @property
    def layout(self) -> str:
        """Axis order of image inputs."""

    @property
    def output_count(self) -> int:
        """Number of model outputs; available after the first run."""

    @property
    def layers(self) -> list[str]:
        """Names of the layers with additional outputs."""

    def in_order(self, item: Any) -> list[Any]:
        """Return a batch as one array per input, in input order."""

    def run(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs and then the layer outputs, as arrays."""


def compare_with(
    open_reference: Callable[[list[str]], ParityReference],
    path: str | os.PathLike[str],
    data: Any,
    *,
    layers: bool,
    batch_size: int,
    labels: bool = True,
) -> ParityReport:
    """Compare ``path`` with a model on ``data``; see ``qat_lib.keras.export.parity.check_parity``.

    Args:
        open_reference: returns the model, given the names of layers for additional outputs; it may
            provide fewer.
        path: the ONNX file.
        data: inputs of the model, or raw images.
        layers: whether to compare the output of every layer, too.
        batch_size: samples at a time.
        labels: whether classification outputs are also judged by their labels, and a quantized file
            in float16 by its largest difference; use False for random inputs. Default True.

    Raises:
        VerificationError: the number or the shapes of the outputs differ from the model's.
        ExportError: ONNX Runtime can't run the file, or there is no data.
    """
    path = Path(path)
    proto = load_onnx(path)
    check_bounds(path, proto)
    metadata = read_metadata(proto)
    tensors = read_names(metadata, "tensors") if layers else {}
    reference = open_reference(list(tensors))
    tensors = {layer: tensors[layer] for layer in reference.layers}
    extra = tuple(dict.fromkeys(tensors.values()))
    session = ReferenceSession(
        path, extra_outputs=extra, metadata=metadata, layout=reference.layout
    )
    recorded = Recorded()
    if "quantizers" in metadata:
        recorded = Recorded.from_json(metadata["quantizers"])
    comparison = _Comparison(framework=reference.framework, labels=labels, recorded=recorded)
    fixed = session.fixed_batch
    # A file with a fixed batch size can't run an incomplete last batch.
    for batch in batches(reference, data, fixed or batch_size, whole=fixed is not None):
        inputs = session.model_inputs(batch)
        expected = reference.run(inputs)
        received = session.run(batch)
        outputs = reference.output_count
        rows = comparison.add(expected, received, outputs)
        if rows.size:
            differing = [y[rows] for y in expected]
            # Only samples with another label need the noise: it decides about ties.
            for size in NUDGES if comparison.is_quantized else NUDGES[:1]:
                moved = reference.run([nudged(x[rows], size) for x in inputs])
                comparison.add_noise(differing, moved)
                if comparison.noise > size / 2 * comparison.largest_logit:
                    break
        found = _differences(received, expected[:outputs])
        noises = [0.0] * outputs
        # A second run of the model is expensive, so the noise is measured only beyond the plain
        # limits.
        if comparison.exceeds(found):
            if any(x.dtype.kind == "f" for x in inputs):
                moved = reference.run([nudged(x, NUDGES[-1]) for x in inputs])
                noises = _differences(moved[:outputs], expected[:outputs])
            else:
                moved_tables = ReferenceSession(
                    path, metadata=metadata, layout=reference.layout, moved=NUDGES[-1]
                )
                noises = _differences(moved_tables.run(batch), received)
        comparison.add_differences(found, noises)
        for layer, value in zip(reference.layers, expected[outputs:], strict=True):
            comparison.add_layer(layer, tensors[layer], value, session.extra(tensors[layer]))
    return comparison.report()


def _differences(received: list[np.ndarray], expected: list[np.ndarray]) -> list[float]:
    return [difference([one], [other]) for one, other in zip(received, expected, strict=True)]


def _widened(bound: float, noise: float) -> float:
    """Return the bound of an output, widened by its noise."""
    return max(bound, min(NOISE_FACTOR * noise, NOISE_BOUND)) if np.isfinite(noise) else bound


def batches(
    reference: ParityReference, data: Any, size: int, *, whole: bool
) -> Iterator[list[np.ndarray]]:
    """Yield batches, each a list of one array per model input.

    Args:
        reference: the model.
        data: an array, a list of arrays or a dict of arrays by input name, or an iterable of such
            batches.
        size: samples at a time.
        whole: whether to leave out an incomplete last batch.

    Raises:
        ExportError: the arrays do not match the inputs, or differ in their number of samples.
    """
    # Arrays are one batch, of any number of samples; an iterable has several.
    is_one = isinstance(data, np.ndarray | list | tuple | Mapping) or not isinstance(data, Iterable)
    for item in [data] if is_one else data:
        arrays = [np.asarray(x) for x in reference.in_order(item)]
        counts = {len(x) if x.ndim else 0 for x in arrays}
        if len(counts) > 1:
            raise ExportError(
                f"Expected as many samples for each input. Received: {sorted(counts)}."
            )
        for start in range(0, max(counts, default=0), size):
            part = [x[start : start + size] for x in arrays]
            if not whole or len(part[0]) == size:
                yield part


@dataclass
class _Difference:
    """Largest deviation and magnitude over the batches."""

    largest: float = 0.0
    total: float = 0.0
    count: int = 0
    magnitude: float = 0.0

    def add(self, expected: np.ndarray, received: np.ndarray) -> None:
        """Add one batch; a NaN in one of the arrays remains in ``largest``."""
        one, other = expected.astype(np.float64), received.astype(np.float64)
        equal = (one == other) | (np.isnan(one) & np.isnan(other))
        with np.errstate(invalid="ignore"):
            distance = np.where(equal, 0.0, np.abs(one - other))
        self.largest = float(distance.max(initial=self.largest))
        self.total += float(distance.sum())
        self.count += distance.size
        self.magnitude = float(np.abs(one[np.isfinite(one)]).max(initial=self.magnitude))

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)


@dataclass
class _Comparison:
    """Differences over the batches."""

    samples: int = 0
    outputs: _Difference = field(default_factory=_Difference)
    equal: int | None = None
    margins: list[float] = field(default_factory=list)
    largest_logit: float = 0.0
    noise: float = 0.0
    half: bool = False
    layers: dict[str, tuple[str, _Difference]] = field(default_factory=dict)
    framework: str = "Keras"
    labels: bool = True
    recorded: Recorded = field(default_factory=Recorded)
    difference: float = 0.0
    bound: float = 1.0
    widening: float = 1.0

    @property
    def is_quantized(self) -> bool:
        """Whether the file has quantizers."""
        return bool(self.recorded.activations)

    @property
    def plain_bound(self) -> float:
        """The bound of an output without noise."""
        half = HALF_BOUND if self.half or self.recorded.half else FLOAT_BOUND
        return max(half, QUANTIZED_BOUND) if self.is_quantized else half

    @property
    def tolerance(self) -> float | None:
        """Limit of single values relative to the largest, widened like the bound; None = none."""
        if not self.is_quantized:
            half = self.half or self.recorded.half
            return self.widening * (HALF_TOLERANCE if half else FLOAT_TOLERANCE)
        return self.widening * HALF_BOUND if self.recorded.half and self.labels else None

    def exceeds(self, found: list[float]) -> bool:
        """Return whether a difference or a single value is beyond its limit without noise."""
        tolerance = self.tolerance
        far = tolerance is not None and self.outputs.largest > tolerance * self.outputs.magnitude
        return far or max(found, default=0.0) > self.plain_bound

    def add_differences(self, found: list[float], noises: list[float]) -> None:
        """Record the output closest to its bound, or furthest beyond it."""
        for each, noise in zip(found, noises, strict=True):
            bound = _widened(self.plain_bound, noise)
            self.widening = max(self.widening, bound / self.plain_bound)
            if each / bound >= self.difference / self.bound:
                self.difference, self.bound = each, bound

    def add(
        self, expected: list[np.ndarray], received: list[np.ndarray], outputs: int
    ) -> np.ndarray:
        """Add one batch; return the rows with different labels."""
        differing = [np.empty(0, np.intp)]
        first, *_ = expected
        self.samples += len(first)
        if len(received) != outputs:
            raise VerificationError(
                f"Expected {outputs} outputs as in {self.framework}. ONNX gives {len(received)}. "
                "Compare the file with the model that it was exported from."
            )
        for output, onnx_output in zip(expected, received, strict=False):
            if output.shape != onnx_output.shape:
                raise VerificationError(
                    f"Expected an output of shape {output.shape} as in {self.framework}. "
                    f"ONNX gives {onnx_output.shape}. "
                    "Compare the file with the model that it was exported from."
                )
            self.half |= output.dtype == np.float16
            if output.dtype.kind in "iub":
                continue  # Distances between indices are meaningless.
            self.outputs.add(output, onnx_output)
            if self.labels and output.ndim == 2 and output.shape[1] > 1:
                differing.append(self._add_labels(output, onnx_output))
        return np.unique(np.concatenate(differing))

    def _add_labels(self, expected: np.ndarray, received: np.ndarray) -> np.ndarray:
        logits = _logits(expected)
        self.largest_logit = float(np.abs(logits).max(initial=self.largest_logit))
        label, other = expected.argmax(axis=1), received.argmax(axis=1)
        self.equal = (self.equal or 0) + int((label == other).sum())
        rows = np.flatnonzero(label != other)
        self.margins += [float(m) for m in logits[rows, label[rows]] - logits[rows, other[rows]]]
        return rows

    def add_noise(self, expected: list[np.ndarray], moved: list[np.ndarray]) -> None:
        """Record the change of the outputs caused by a change of the input."""
        for before, after in zip(expected, moved, strict=True):
            if before.ndim == 2 and before.shape[1] > 1 and before.dtype.kind not in "iub":
                self.noise = float(np.abs(_logits(before) - _logits(after)).max(initial=self.noise))

    def add_layer(
        self, layer: str, tensor: str, expected: np.ndarray, received: np.ndarray
    ) -> None:
        """Add the output of one layer."""
        # The tensor may have either axis order: the matching one is used.
        orders = [received]
        if received.ndim > 2:
            orders.append(np.moveaxis(received, 1, -1))
        # Images need equal shapes; elsewhere the export may have added or removed axes of size 1.
        if {received.ndim, expected.ndim} == {4}:
            candidates = [x for x in orders if x.shape == expected.shape]
        else:
            candidates = [x.reshape(expected.shape) for x in orders if x.size == expected.size]
        if candidates:
            best = min(
                candidates, key=lambda x: float(np.abs(x.astype(np.float64) - expected).sum())
            )
            self.layers.setdefault(layer, (tensor, _Difference()))[1].add(expected, best)

    def report(self) -> ParityReport:
        """Return the verdict over all batches."""
        if not self.samples:
            raise ExportError(
                f"Expected at least one sample to compare ONNX with {self.framework}. "
                "Received none."
            )
        step = self.largest_logit * (1 / 127 if self.is_quantized else FLOAT_STEP)
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
            tolerance=self.tolerance,
            difference=self.difference,
            allowed=self.bound,
            labels_decide=not self.recorded.half,
            layers=tuple(starmap(_layer_difference, self.layers.items())),
            framework=self.framework,
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
    """Return the outputs as logits; probabilities are converted to centred logarithms."""
    rows = outputs.astype(np.float64)
    if not (np.all(rows >= 0) and np.all(np.abs(rows.sum(axis=1) - 1.0) < 1e-3)):
        return rows
    # The logarithm inverts a softmax up to a constant per row; centring removes that constant.
    logits = np.log(np.maximum(rows, np.finfo(np.float32).tiny))
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))
