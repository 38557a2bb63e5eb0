"""Metrics of a quantized model, and distances of its outputs from those of the float model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from qat_lib.errors import ConfigError
from qat_lib.support.digests import sha256_of_file

Measure: TypeAlias = Literal["kl", "error"]
Outputs = list[np.ndarray]
MetricName: TypeAlias = Literal["accuracy", "agreement", "fidelity"]
Metric = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float]
"""Returns the metric from the outputs (one array per output) and those of the float model.

Greater is better.
"""


def metric_key(metric: Metric) -> Any:
    """Return JSON types that identify a user's metric across processes.

    A function is identified by its source file, its place there and the values bound to it. Other
    callables are identified by their ``repr``; if that contains an address, another process has
    another key.
    """
    source = inspect.getsourcefile(metric) if inspect.isfunction(metric) else None
    if source is None or not Path(source).is_file():  # typed at a prompt, for example
        return repr(metric)
    closure = [cell.cell_contents for cell in metric.__closure__ or ()]
    bound = repr([metric.__defaults__, metric.__kwdefaults__, closure])
    code = metric.__code__
    return [sha256_of_file(Path(source)), code.co_firstlineno, code.co_code.hex(), bound]


def choose_metric(
    outputs: Sequence[np.ndarray], labels: Any = None, asked: str | None = None
) -> tuple[str, Metric]:
    """Return the name and the function of a metric.

    Args:
        outputs: the float model's outputs.
        labels: class numbers ``(samples,)``, or None.
        asked: ``"accuracy"``: share of samples whose largest output is the label;
            ``"agreement"``: share of samples with the same largest output as the float model;
            ``"fidelity"``: 1 minus the root mean square of the difference of the outputs over their
            standard deviation, at least 0. None: the first of these supported by labels and
            outputs.

    Raises:
        ConfigError: the metric is unknown, or requires labels or a class output.
    """
    is_classifier = len(outputs) == 1 and outputs[0].ndim == 2 and outputs[0].shape[1] > 1
    if asked is None:
        asked = "fidelity"
        if is_classifier:
            asked = "agreement" if labels is None else "accuracy"
    if asked == "fidelity":
        return asked, _fidelity
    if asked not in ("accuracy", "agreement"):
        raise ConfigError(
            f"Expected a metric: accuracy, agreement or fidelity. Received: {asked!r}."
        )
    if not is_classifier:
        shapes = ", ".join(str(output.shape) for output in outputs)
        raise ConfigError(
            f"Expected one output (samples, classes) for the metric {asked}. Received {shapes}: "
            "take fidelity, or a function of your own."
        )
    if asked == "agreement":
        return asked, _agreement
    if labels is None:
        raise ConfigError(
            "Expected labels for the metric accuracy. Received inputs alone: give labels, or take "
            "agreement."
        )
    truth = np.asarray(labels)

    def accuracy(found: Sequence[np.ndarray], _: Sequence[np.ndarray]) -> float:
        return float(np.mean(_labels(found[0]) == truth))

    return asked, accuracy


def _agreement(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    return float(np.mean(_labels(outputs[0]) == _labels(reference[0])))


def _labels(outputs: np.ndarray) -> np.ndarray:
    """Return the class of each sample as a float; NaN for samples with a NaN output."""
    # argmax returns the position of a NaN. A class of NaN equals nothing: the sample is wrong.
    return np.where(np.isnan(outputs).any(axis=1), np.nan, outputs.argmax(axis=1))


def _fidelity(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    # Below 0 for outputs that hardly vary, as those of random weights: their error has no scale.
    return max(0.0, 1.0 - effect("error", list(outputs), list(reference)))


def parse_drop(text: str) -> float:
    """Return a bound such as ``0.5%`` or ``0.005`` as a share.

    >>> parse_drop("0.5%")
    0.005

    Raises:
        ConfigError: the text is not a number from 0 to 1 (100 %).
    """
    match = re.fullmatch(r"\s*(\d*\.?\d+)\s*(%?)\s*", text)
    value = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= value <= 1:
        raise ConfigError(
            f"Expected the largest accepted drop as 0.5% or 0.005. Received: {text!r}."
        )
    return value


def choose_measure(outputs: Sequence[np.ndarray], asked: str | None = None) -> Measure:
    """Return the effect measure for the outputs of a model.

    Args:
        outputs: the float model's outputs.
        asked: ``"kl"`` or ``"error"``; None = ``"kl"`` for one output ``(samples, classes)`` with
            two classes or more, else ``"error"``.

    Raises:
        ConfigError: ``asked`` is not a measure, or is ``"kl"`` for other outputs.
    """
    is_classifier = len(outputs) == 1 and outputs[0].ndim == 2 and outputs[0].shape[1] > 1
    if asked is None:
        return "kl" if is_classifier else "error"
    if asked == "kl" and not is_classifier:
        shapes = ", ".join(str(output.shape) for output in outputs)
        raise ConfigError(
            "Expected one output (samples, classes) for the measure 'kl'. Received outputs of "
            f"{shapes}: take 'error'."
        )
    if asked in get_args(Measure):
        return cast("Measure", asked)
    raise ConfigError(f"Expected a measure: 'kl' or 'error'. Received: {asked!r}.")


def effect(measure: Measure, outputs: Outputs, reference: Outputs) -> float:
    """Return the distance of outputs from those of the float model.

    Args:
        measure: ``"kl"``: mean Kullback-Leibler divergence of the class probabilities from the
            float model's, in nats. ``"error"``: root mean square of the difference over the
            standard deviation of the float outputs, for the worst output.
        outputs: one array per output.
        reference: outputs of the float model, one array per output.
    """
    if measure == "kl":
        ours, theirs = log_probabilities(outputs[0]), log_probabilities(reference[0])
        return float(np.mean(np.sum(np.exp(theirs) * (theirs - ours), axis=1)))
    errors = []
    for output, expected in zip(outputs, reference, strict=True):
        # In float64: the squares of large outputs overflow or lose digits in lower precision.
        spread = float(np.std(expected.astype(np.float64)))
        error = float(np.sqrt(np.mean(np.square(output.astype(np.float64) - expected))))
        errors.append(error / max(spread, 1e-12))
    return max(errors)


def log_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Return the logarithms of class probabilities, from logits or probabilities.

    Args:
        outputs: ``(samples, classes)``; non-negative rows with a sum of 1 count as probabilities.
    """
    values = outputs.astype(np.float64)
    if np.all(values >= 0) and np.all(np.abs(values.sum(axis=1) - 1) < 1e-3):
        values = np.log(np.maximum(values, 1e-12))
    # Probabilities above became logits: log-softmax normalizes both.
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
