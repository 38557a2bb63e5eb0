"""Counting of large tensors: exact ends, a fair sample of what is between."""

import math

import numpy as np
import pytest

from qat_lib.calibrators.histogram import MagnitudeHistogram
from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.calibrators.sampling import (
    PART,
    beyond,
    count_array,
    sample_positions,
    sampling_step,
)


def tensor(seed: int = 0, shape: tuple[int, ...] = (8, 40, 40, 16)) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.standard_t(4, size=shape) * generator.uniform(0.1, 2, shape[-1])).astype("f4")


@pytest.mark.parametrize(
    ("positions", "channels", "budget", "expected"),
    [
        ((40, 40), 16, 25_600, 1),
        ((40, 40), 16, 25_599, 3),
        ((40, 40), 16, 4096, 7),
        ((7, 7), 960, 4096, 12),
        ((7, 7), 960, 1, 48),
        ((3,), 10, 1, 2),
        ((1, 1), 1280, 1, 1),
        ((2, 2), 5000, 1, 3),
    ],
)
def test_sampling_step_meets_the_budget(positions, channels, budget, expected):
    assert sampling_step(positions, channels, budget) == expected


@pytest.mark.parametrize("budget", range(1, 60, 7))
def test_sampling_step_comes_by_every_row(budget):
    step = sampling_step((6, 10), 1, budget)
    assert all(math.gcd(step, size) == 1 for size in (6, 10)) or step == 1
    assert 1 <= step < 60


def test_sample_positions_is_the_same_in_every_layout():
    last = tensor()
    sample, weight = sample_positions(last, 3, 512)
    other, other_weight = sample_positions(np.moveaxis(last, -1, 1), 1, 512)
    np.testing.assert_array_equal(sample, other)
    assert weight == other_weight > 1
    assert len(sample) == pytest.approx(8 * 40 * 40 / weight, abs=1)
    np.testing.assert_array_equal(sample[0], last.reshape(-1, 16)[weight // 2])


@pytest.mark.parametrize("shape", [(70,), (70, 90), (3, 1, 1, 90), (3, 4, 4, 2)])
def test_sample_positions_takes_small_tensors_whole(shape):
    array = tensor(shape=shape)
    sample, weight = sample_positions(array, array.ndim - 1, 64)
    assert sample is array
    assert weight == 1


@pytest.mark.parametrize("least", [-5.0, 0.0])
def test_beyond_finds_every_far_element(least):
    array = np.maximum(tensor(), least)
    array[0, 0, 0, 0], array[-1, -1, -1, -1] = 77, 99
    far, negative = beyond(array, 3.0)
    found = array.ravel(order="K")[far]
    np.testing.assert_array_equal(np.sort(found), np.sort(array[np.abs(array) > 3]))
    assert negative is (least < 0)


def test_beyond_sees_all_parts():
    array = np.zeros(2 * PART + 5, np.float32)
    array[[0, PART, -1]] = -4, -5, 6
    far, negative = beyond(array, 1.0)
    assert (far.tolist(), negative) == ([0, PART, 2 * PART + 4], True)


def test_beyond_keeps_nan():
    assert beyond(np.float32([0, np.nan, 1]), 2.0)[0].tolist() == [1]


def counts(array, unsigned=False, budget=512, batches=4):
    histogram, threshold = MagnitudeHistogram(), None
    for part in np.split(array, batches):
        counted = count_array(part, 3, budget, threshold, unsigned=unsigned)
        threshold = counted.threshold
        for values, weight, gains in counted.values:
            assert gains is None
            histogram.add(values, counted.largest, weight)
    return histogram


@pytest.mark.parametrize("layout", ["channels last", "channels first", "channels first, in memory"])
@pytest.mark.parametrize("budget", [512, 10**9])
def test_count_array_gives_each_element_the_gain_of_its_channel(layout, budget):
    array, axis = np.arange(1, 1 + 2 * 5 * 7 * 3, dtype=np.float32).reshape(2, 5, 7, 3), 3
    array = np.tile(array, (1, 6, 6, 1))
    if layout != "channels last":
        array, axis = np.moveaxis(array, 3, 1), 1
    if layout == "channels first":
        array = np.ascontiguousarray(array)
    counted = count_array(
        array, axis, budget, 100.0, unsigned=False, gains=np.array([0.5, 2.0, 8.0])
    )
    for values, _, gains in counted.values:
        assert values.size > 0
        # Channel after channel holds consecutive numbers.
        expected = np.array([8.0, 0.5, 2.0])[values.astype(int) % 3]
        np.testing.assert_array_equal(np.broadcast_to(gains, values.shape), expected)


@pytest.mark.parametrize("unsigned", [False, True])
def test_count_array_keeps_the_tail_exactly(unsigned):
    array = tensor()
    sampled = counts(array, unsigned)
    exact = counts(array, unsigned, budget=10**9)
    assert sampled.observed_max == exact.observed_max
    assert sampled.upper == exact.upper
    cut = np.quantile(np.maximum(array, 0) if unsigned else np.abs(array), 0.9995)
    far = exact.edges[:-1] > cut
    np.testing.assert_array_equal(sampled.counts[far], exact.counts[far])
    assert sampled.counts.sum() == pytest.approx(array.size, rel=0.01)
    assert range_from_histogram(sampled, "percentile") == pytest.approx(
        range_from_histogram(exact, "percentile"), rel=1e-3
    )
    assert range_from_histogram(sampled, "mse") == pytest.approx(
        range_from_histogram(exact, "mse"), rel=0.1
    )


def test_count_array_knows_the_largest_without_a_tail():
    array = np.zeros((2, 30, 30, 8), np.float32)
    array[0, 3, 3, 3], array[1, 2, 2, 2] = 0.5, -0.75
    found = [count_array(array, 3, 64, 1.0, unsigned=unsigned) for unsigned in (False, True)]
    assert [counted.largest for counted in found] == [0.75, 0.5]
    assert all(counted.negative for counted in found)
    negative = count_array(-1 - np.abs(array), 3, 64, 0.5, unsigned=True)
    assert negative.largest == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 7777])
def test_count_array_sees_what_is_not_finite(bad, place):
    array = tensor()
    array.reshape(-1)[place] = bad
    assert not np.isfinite(count_array(array, 3, 512, None, unsigned=False).largest)
