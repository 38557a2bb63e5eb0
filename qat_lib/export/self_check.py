"""Comparison of a written graph with its model on random inputs, before the file is renamed.

The verification reads the graph; this module runs it. Only a run reveals a fault of a converter or
a lowering pass that results in a valid graph with wrong values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.record import C02
from qat_lib.errors import VerificationError
from qat_lib.export.comparing import (
    NOISE_BOUND,
    NOISE_FACTOR,
    NUDGES,
    ParityReference,
    compare_with,
)
from qat_lib.export.graph import consumers, dims, is_op, operand, scalar
from qat_lib.export.parity_report import ParityReport
from qat_lib.export.passes.bounds import RANGES
from qat_lib.graph.roles import onnx_operators
from qat_lib.preprocessing import AnyPreprocessing, Preprocessing, PreprocessingByInput
from qat_lib.support.answers import difference, nudged
from qat_lib.support.foreign_errors import describe_error

logger = logging.getLogger("qat_lib")

SAMPLES = 2
OPEN_SIZES = (64, 32, 16, 8, 128, 224, 256, 512)
"""Sizes tried for open dimensions except the batch, until one fits the model: short ones for
sequences, and image sizes, which a nested model may have fixed."""
KEEP_RANGE = onnx_operators("range preserving")
"""Operators between an input and its quantizer."""


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """Input of an exported model.

    Attributes:
        shape: shape with None for open dimensions. The first dimension is the batch; the graph
            determines whether it is open.
        dtype: name of the data type.
        values: allowed values. Default None: all values.
    """

    shape: tuple[int | None, ...]
    dtype: str
    values: np.ndarray | None = None


class Comparable(Protocol):
    """A model for comparison with its exported graph."""

    @property
    def layout(self) -> Any:
        """Axis order of image inputs."""

    def inputs(self) -> Sequence[ModelInput]:
        """Return the inputs in order."""

    def reference(self, layers: list[str]) -> ParityReference:
        """Return the reference model with additional outputs of ``layers``."""


def compare_draft(
    source: Comparable,
    draft: Path,
    graph: ir.Model,
    preprocessing: AnyPreprocessing | None,
    *,
    embedded: bool,
) -> list[Finding]:
    """Compare a written file with its model on random inputs.

    Inputs have the range of their quantizer or preprocessing, or are normal noise. Integers are 0
    and 1, valid in every vocabulary.

    Args:
        source: the model.
        draft: the file.
        graph: graph of the file.
        preprocessing: preprocessing of raw inputs.
        embedded: whether the graph contains the preprocessing.

    Returns:
        A finding with the reason if the comparison was impossible, else nothing.

    Raises:
        VerificationError: the outputs differ.
    """
    inputs = source.inputs()
    is_open = any(size is None for each in inputs for size in each.shape[1:])
    reason = ""
    # Some models take only certain sizes: try the next one after an error.
    for size in OPEN_SIZES if is_open else OPEN_SIZES[:1]:
        try:
            data = _random_inputs(source, graph, size, preprocessing, embedded)
            return _judge(source, draft, data)
        except VerificationError:
            raise
        except Exception as error:  # noqa: BLE001 (models raise errors of many types)
            reason = reason or describe_error(error)
    return [_not_compared(draft, reason)]


def _judge(source: Comparable, draft: Path, data: list[np.ndarray]) -> list[Finding]:
    def compare(layers: bool) -> ParityReport:
        return compare_with(
            source.reference, draft, data, layers=layers, batch_size=SAMPLES, labels=False
        )

    report = None
    try:
        report = compare(layers=False)
        problem = "" if report.passed else _describe(report)
    except VerificationError as error:
        problem = str(error)
    if not problem:
        return []
    # A random layer, such as a dropout active at inference: a difference would not indicate a
    # fault.
    if not _repeats(source, data):
        return [_not_compared(draft, "the model gives other outputs at each call")]
    # In an untrained network, rounding may change the outputs as much as a fault.
    if report is not None and report.allowed >= NOISE_BOUND:
        noise = _noise(source, data)
        if report.difference <= NOISE_FACTOR * noise:
            return [_not_compared(draft, f"rounding changes its outputs by {noise:.0%}")]
    raise VerificationError(
        f"The exported graph of {draft.name} computes other outputs than the model: {problem}"
        f"{_first_layer(compare)} No file was written. Replace the layer, or leave it out of the "
        "exported model."
    )


def _describe(report: ParityReport) -> str:
    if report.difference <= report.allowed:  # then it is a single value
        return (
            f"on random inputs a value differs by {report.largest_difference:.3g}, and the largest "
            f"one is {report.magnitude:.3g}; rounding explains {report.tolerance:.2g} of that."
        )
    return (
        f"on random inputs its outputs differ by {report.difference:.2g} of their spread "
        f"(largest difference {report.largest_difference:.3g}), and rounding explains "
        f"{report.allowed:.2g}."
    )


def _first_layer(compare: Callable[[bool], ParityReport]) -> str:
    """Return a sentence about the first layer with a difference."""
    try:
        report = compare(True)
    except VerificationError:  # outputs of other shapes: no layers are compared
        return ""
    first = report.first_difference(relative=max(report.allowed, 1e-3))
    return "" if first is None else f" The difference starts at the layer {first.layer!r}."


def _repeats(source: Comparable, data: list[np.ndarray]) -> bool:
    reference = source.reference([])
    first, second = reference.run(data), reference.run(data)
    return all(map(np.array_equal, map(np.nan_to_num, first), map(np.nan_to_num, second)))


def _noise(source: Comparable, data: list[np.ndarray]) -> float:
    """Return the largest change of an output by a small change of the inputs."""
    reference = source.reference([])
    first, second = reference.run(data), reference.run([nudged(x, NUDGES[-1]) for x in data])
    return max(difference([x], [y]) for x, y in zip(second, first, strict=True))


def _not_compared(draft: Path, reason: str) -> Finding:
    logger.warning("%s was not compared with its model: %s.", draft.name, reason)
    return C02.at(
        draft.name,
        message=f"The file was not compared with its model: {reason}.",
        advice="Compare them on inputs of your own with check_parity.",
        layer="",
    )


def _random_inputs(
    source: Comparable,
    graph: ir.Model,
    size: int,
    preprocessing: AnyPreprocessing | None,
    embedded: bool,
) -> list[np.ndarray]:
    """Return an array for each input, with ``size`` for open dimensions."""
    # Fixed seed: the result of an export is reproducible.
    rng = np.random.default_rng(0)
    inputs, arrays = source.inputs(), []
    for each, value in zip(inputs, graph.graph.inputs, strict=True):
        if isinstance(preprocessing, PreprocessingByInput):
            form = preprocessing.inputs.get(value.name or "")
        else:
            form = preprocessing if len(inputs) == 1 else None
        if form is not None:
            raw = _raw_data(rng, _batch(value), form)
            data = raw if embedded else form.apply(raw)
            if source.layout == "NCHW" and data.ndim == 4:
                data = np.ascontiguousarray(data.transpose(0, 3, 1, 2))
            if embedded or data.shape[1:] == each.shape[1:]:
                arrays.append(data)
                continue
        shape = (_batch(value), *(size if n is None else n for n in each.shape[1:]))
        arrays.append(_random_array(rng, shape, each, value))
    return arrays


def _batch(value: ir.Value) -> int:
    first, *_ = dims(value) or [None]
    return first or SAMPLES


def _raw_data(rng: np.random.Generator, count: int, preprocessing: Preprocessing) -> np.ndarray:
    shape = (count, *preprocessing.image_shape)
    if preprocessing.dtype == "uint8":
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return rng.random(shape, dtype=np.float32)


def _random_array(
    rng: np.random.Generator, shape: tuple[int, ...], given: ModelInput, value: ir.Value
) -> np.ndarray:
    if given.values is not None:
        return np.resize(given.values, shape)
    dtype = np.dtype(given.dtype)
    if dtype == np.uint8 and len(shape) > 2:
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    noise = rng.normal(size=shape)
    if (bounds := _range(value)) is not None:
        low, high = bounds
        # Three standard deviations fill each half of the range.
        noise = np.clip((low + high) / 2 + noise * (high - low) / 6, low, high)
    return noise.astype(np.float32)


def _range(value: ir.Value) -> tuple[float, float] | None:
    """Return the range of the quantizer of an input; None without one."""
    for node in consumers(value):
        if is_op(node, "QuantizeLinear"):
            scale, integers = scalar(operand(node, 1)), node.outputs[0].dtype
            if scale is None or integers not in RANGES:
                return None
            high = scale * RANGES[integers][1]
            return (0.0 if integers == ir.DataType.UINT8 else -high), high
        if is_op(node, *KEEP_RANGE):
            found = _range(node.outputs[0])
            if found is not None:
                return found
    return None
