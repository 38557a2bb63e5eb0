"""Samples for both forms of a model, within a memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from qat_lib.calibrators.batches import count_samples, inputs_in_order
from qat_lib.errors import CalibrationError

BYTES_PER_ELEMENT = 4
MEMORY = 2**30
"""Default limit of the bytes in the tensors of all samples at a time."""
LEAST_SAMPLES = 4


def take_samples(
    batches: Iterable[Any],
    samples: int,
    names: Sequence[str],
    bytes_per_sample: Callable[[Any], int],
    memory: int = MEMORY,
) -> list[Any]:
    """Return the first samples of batches, each in the order of inputs.

    Args:
        batches: batches as a tensor, a list or a dict of tensors.
        samples: number of samples, at least 1; reduced if their tensors would exceed ``memory``.
        names: names of the model's inputs.
        bytes_per_sample: returns the peak bytes of one sample's tensors, in both forms, for the
            first batch.
        memory: limit in bytes. Default: 1 GiB.

    Raises:
        CalibrationError: there is no data, ``samples`` is below 1, or a batch lacks an input.
    """
    if samples < 1:
        raise CalibrationError(f"Expected samples to be at least 1. Received: {samples!r}.")
    left = 0
    taken: list[Any] = []
    for batch in batches:
        given = inputs_in_order(names, batch) if isinstance(batch, Mapping) else batch
        if not taken:
            # A minimum of samples even beyond the memory limit, because fewer give no meaningful
            # mean.
            left = min(samples, max(LEAST_SAMPLES, memory // max(1, bytes_per_sample(given))))
        taken.append(_first(given, left))
        left -= count_samples(taken[-1])
        if left <= 0:
            break
    if not taken:
        raise CalibrationError("The calibration data is empty: give at least one batch.")
    return taken


def _first(batch: Any, count: int) -> Any:
    if isinstance(batch, (list, tuple)):
        return [part[:count] for part in batch]
    return batch[:count]
