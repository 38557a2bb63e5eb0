"""The four calibrators on histograms that are known to the last count."""

from typing import Any

import numpy as np
import pytest
import quantization_oracle as oracle

from qat_lib.calibrators.methods import (
    CANDIDATES,
    ENTROPY_BINS,
    METHODS,
    check_method,
    chosen_method,
)
from qat_lib.errors import CalibrationError
from qat_lib.keras.calibration import Histogram, range_from_histogram


def histogram(counts: Any, upper: float = 1.0, observed_max: float | None = None) -> Histogram:
    made = Histogram(len(counts))
    made.counts = np.asarray(counts, np.int64)
    made.upper = upper
    made.observed_max = upper if observed_max is None else observed_max
    return made


@pytest.mark.parametrize(
    ("percentile", "expected"), [(1, 1), (25, 1), (26, 2), (50, 2), (99, 4), (99.99, 4), (100, 4)]
)
def test_percentile_is_upper_edge_of_its_bin(percentile: float, expected: float) -> None:
    assert range_from_histogram(histogram([5, 5, 5, 5], 4.0), "percentile", percentile) == expected


def test_percentile_100_is_last_nonempty_bin() -> None:
    assert range_from_histogram(histogram([5, 5, 0, 0], 4.0, 1.75), "percentile", 100) == 1.75
    assert range_from_histogram(histogram([5, 5, 0, 0], 4.0, 4.0), "percentile", 100) == 2.0


def test_percentile_is_9999_hundredths_by_default() -> None:
    counts = [9999, 1, 10_000 * 0]
    assert range_from_histogram(histogram([9_999, 1], 2.0), "percentile") == 1.0
    assert range_from_histogram(histogram([9_998, 2], 2.0), "percentile") == 2.0
    assert sum(counts) == 10_000


def published_mse(counts: np.ndarray, upper: float, observed_max: float, steps: int) -> float:
    """The least of a hundred ranges and of the values, one value after the other."""
    width = upper / len(counts)
    values = [min((i + 0.5) * width, observed_max) for i, count in enumerate(counts) if count]
    best, range_ = np.inf, 0.0
    for amax in sorted([*np.linspace(observed_max / 100, observed_max, 100), *values]):
        error = 0.0
        for index, count in enumerate(counts):
            center = (index + 0.5) * width
            integer = min(max(round(center / (amax / steps)), 0), steps)
            error += count * (center - integer * amax / steps) ** 2
        if error < best:
            best, range_ = error, float(amax)
    return range_


@pytest.mark.parametrize(
    ("bits", "unsigned", "steps"), [(3, False, 3), (3, True, 7), (4, False, 7), (8, False, 127)]
)
def test_mse_is_least_of_hundred_ranges_and_values(bits: int, unsigned: bool, steps: int) -> None:
    counts = np.random.default_rng(1).integers(0, 9, 48) * np.linspace(5, 0, 48).astype(int)
    counts[-1] = 1
    found = range_from_histogram(
        histogram(counts, 3.0, 2.97), "mse", num_bits=bits, unsigned=unsigned
    )
    assert found == pytest.approx(published_mse(counts, 3.0, 2.97, steps))


def test_mse_of_many_values_is_one_of_hundred_ranges() -> None:
    counts = np.random.default_rng(0).integers(1, 9, CANDIDATES + 1)
    found = range_from_histogram(histogram(counts, 2.0), "mse", num_bits=4)
    assert found * CANDIDATES / 2.0 == pytest.approx(round(found * CANDIDATES / 2.0))


def test_mse_and_entropy_have_the_published_resolution() -> None:
    assert (CANDIDATES, ENTROPY_BINS) == (100, 2048)


def entropy(counts: dict[int, int] | np.ndarray, bits: int = 8) -> float:
    """Return the chosen range in bins, out of entropy's 2048."""
    whole = np.zeros(ENTROPY_BINS, np.int64)
    if isinstance(counts, dict):
        for index, count in counts.items():
            whole[index] = count
    else:
        whole[: len(counts)] = counts
    fine = np.zeros(2 * ENTROPY_BINS, np.int64)
    fine[::2] = whole
    return range_from_histogram(histogram(fine, float(ENTROPY_BINS)), "entropy", num_bits=bits)


def test_entropy_keeps_what_fits_into_the_levels() -> None:
    """With as many bins as levels nothing is lost.

    The range is the largest magnitude, whatever the counts are.
    """
    assert entropy({0: 5, 1: 5, 127: 5}) == ENTROPY_BINS
    assert entropy({0: 5, 1: 5, 200: 5}) < ENTROPY_BINS


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_entropy_of_equal_counts_clips_least(bits: int) -> None:
    """Equal counts: any range of whole groups loses nothing.

    The last bin that holds a value is the range.
    """
    levels = 2 ** (bits - 1)
    assert entropy(np.full(levels * 8, 7), bits) == levels * 8


def test_entropy_leaves_out_the_count_of_zeros() -> None:
    rest = {1: 9, 2: 7, 3: 5, 4: 3, 5: 1, 9: 1}
    assert len({entropy({0: zeros, **rest}, 3) for zeros in (0, 9, 10**9)}) == 1


def test_entropy_never_ends_in_an_empty_bin() -> None:
    assert entropy({1: 1000, 2: 1000, 3: 1000, 4: 1000, 40: 1}, 3) in (4, 5, 41)


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("bulk", [100, 150, 205])
def test_entropy_clips_an_outlier_far_from_the_rest(bulk: int, unsigned: bool) -> None:
    counts = np.zeros(2 * ENTROPY_BINS, np.int64)
    counts[: 2 * bulk : 2] = 1 + np.random.default_rng(0).poisson(3, bulk)
    counts[-1] = 1
    seen = histogram(counts, float(ENTROPY_BINS))
    assert bulk - 20 <= range_from_histogram(seen, "entropy", unsigned=unsigned) <= bulk


def test_range_never_exceeds_the_data() -> None:
    assert {range_from_histogram(histogram([5, 0], 0.0), method) for method in METHODS} == {0.0}
    for method in METHODS:
        assert range_from_histogram(histogram([1] * 4096, 2.0, 1.5), method) <= 1.5
    assert range_from_histogram(histogram([1, 1], 2.0, 1.5), "max") == 1.5


@pytest.mark.parametrize("percentile", [1e-9, 0.5, 100])
def test_check_method_takes_percentiles_up_to_100(percentile: float) -> None:
    check_method("percentile", percentile)


@pytest.mark.parametrize("percentile", [0, -0.5, 100.01, 101])
def test_check_method_refuses_percentiles_beyond(percentile: float) -> None:
    with pytest.raises(CalibrationError, match=r"in \(0, 100\]"):
        check_method("max", percentile)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_entropy_is_published_one_bin_after_bin(bits: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.poisson(np.linspace(6, 0.2, 40) ** generator.integers(1, 3))
    counts[1:3], counts[-1] = 3, 1
    assert entropy(counts, bits) == oracle.published_entropy(counts, 2 ** (bits - 1))


@pytest.mark.parametrize(
    ("method", "percentile", "expected"),
    [
        (None, None, ("auto", 99.99)),
        (None, 99.0, ("percentile", 99.0)),
        ("percentile", None, ("percentile", 99.99)),
        ("max", 99.0, ("max", 99.0)),
    ],
)
def test_chosen_method_fills_in_the_defaults(
    method: str | None, percentile: float | None, expected: tuple[str, float]
) -> None:
    assert chosen_method(method, percentile) == expected


def test_chosen_method_refuses_a_percentile_beyond() -> None:
    with pytest.raises(CalibrationError, match=r"in \(0, 100\]"):
        chosen_method(None, 101)


def test_auto_weighs_elements_by_their_gains() -> None:
    tail = histogram([100, 50, 20, 5, 0, 0, 0, 1], 8.0)
    ranges = []
    for gain in (1e-6, 1.0, 1e6):
        tail.costs = tail.counts * np.array([1.0] * 7 + [gain])
        ranges.append(range_from_histogram(tail, "auto", num_bits=3))
    assert ranges[0] < range_from_histogram(tail, "mse", num_bits=3) == ranges[1] < ranges[2]
    assert ranges[2] == pytest.approx(7.5, rel=0.02)


def test_auto_of_a_histogram_alone_is_mse() -> None:
    tail = histogram([100, 50, 20, 5, 0, 0, 0, 1], 8.0)
    for unsigned in (False, True):
        found = {m: range_from_histogram(tail, m, unsigned=unsigned) for m in ("auto", "mse")}
        assert found["auto"] == found["mse"] > 0
