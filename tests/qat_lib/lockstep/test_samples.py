"""take_samples: the first samples of batches, within a memory limit."""

from __future__ import annotations

import numpy as np
import pytest

from qat_lib.errors import CalibrationError
from qat_lib.lockstep.samples import LEAST_SAMPLES, MEMORY, take_samples

BATCHES = [np.arange(0.0, 3.0), np.arange(3.0, 6.0), np.arange(6.0, 9.0)]


def test_take_samples_cuts_the_last_batch() -> None:
    taken = take_samples(BATCHES, 5, ["x"], lambda batch: 1)
    assert [list(batch) for batch in taken] == [[0, 1, 2], [3, 4]]


def test_take_samples_gives_all_where_there_are_fewer() -> None:
    assert sum(map(len, take_samples(iter(BATCHES), 100, ["x"], lambda batch: 1))) == 9


def test_take_samples_reads_no_batch_behind_the_last() -> None:
    batches = iter(BATCHES)
    take_samples(batches, 3, ["x"], lambda batch: 1)
    assert next(batches)[0] == 3


@pytest.mark.parametrize(("each", "count"), [(MEMORY // 6, 6), (2 * MEMORY, LEAST_SAMPLES)])
def test_take_samples_takes_fewer_where_memory_ends(each: int, count: int) -> None:
    taken = take_samples(BATCHES, 9, ["x"], lambda batch: each)
    assert sum(map(len, taken)) == count


def test_take_samples_orders_inputs_by_name() -> None:
    left, right = np.zeros((4, 2)), np.ones((4, 3))
    [[first, second]] = take_samples(
        [{"right": right, "left": left}], 2, ["left", "right"], lambda batch: 1
    )
    assert (first.shape, second.shape) == ((2, 2), (2, 3))


def test_take_samples_names_the_input_that_is_missing() -> None:
    with pytest.raises(CalibrationError, match=r"left, right.*lacks 'right'"):
        take_samples([{"left": np.zeros(3)}], 2, ["left", "right"], lambda batch: 1)


@pytest.mark.parametrize(
    ("batches", "samples", "message"), [([], 2, "is empty"), (BATCHES, 0, "at least 1.*0")]
)
def test_take_samples_refuses_what_gives_none(
    batches: list[np.ndarray], samples: int, message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        take_samples(batches, samples, ["x"], lambda batch: 1)
