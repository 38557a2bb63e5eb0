"""Histograms that grow: counts and edges to the last bin."""

import numpy as np
import pytest
import tensorflow as tf

from qat_lib.keras.calibration import Histogram


def add(histogram: Histogram, *values: float) -> None:
    histogram.add(tf.constant(values), max(abs(value) for value in values))


def test_histogram_has_4096_bins_and_begins_empty() -> None:
    histogram = Histogram()
    assert (
        len(histogram.counts),
        histogram.counts.sum(),
        histogram.upper,
        histogram.observed_max,
    ) == (4096, 0, 0, 0)


def test_histogram_counts_zeros_before_anything_else_came() -> None:
    histogram = Histogram(4)
    histogram.add(tf.zeros((2, 3)), 0.0)
    assert histogram.counts.tolist() == [6, 0, 0, 0]
    assert histogram.upper == histogram.observed_max == 0
    add(histogram, 0.25, -0.5, 0.0)
    assert histogram.counts.tolist() == [7, 0, 1, 1]
    assert histogram.upper == histogram.observed_max == 0.5
    add(histogram, 0.0)
    assert histogram.counts.tolist() == [8, 0, 1, 1]


def test_histogram_doubles_and_merges_neighbours() -> None:
    histogram = Histogram(4)
    add(histogram, 0.1, 0.3, 0.6, 0.8, 1.0)
    assert (histogram.counts.tolist(), histogram.upper) == ([1, 1, 1, 2], 1.0)
    add(histogram, 1.0)
    assert (histogram.counts.tolist(), histogram.upper) == ([1, 1, 1, 3], 1.0)
    add(histogram, -1.7)
    assert (histogram.counts.tolist(), histogram.upper) == ([2, 4, 0, 1], 2.0)
    add(histogram, 7.9)
    assert (histogram.counts.tolist(), histogram.upper) == ([7, 0, 0, 1], 8.0)
    assert histogram.observed_max == pytest.approx(7.9)


def test_histogram_edges_are_equal_steps_from_zero() -> None:
    histogram = Histogram(4)
    add(histogram, 2.0)
    assert histogram.edges.tolist() == [0, 0.5, 1, 1.5, 2]
    assert histogram.edges.dtype == np.float64


def test_histogram_adds_up_gains_as_it_does_counts() -> None:
    histogram = Histogram(4)
    values, gains = tf.constant([[0.1, 0.6], [0.3, 1.0]]), np.array([2.0, 0.5])
    histogram.add(values, 1.0, gains=gains)
    assert histogram.costs is not None
    assert histogram.costs.tolist() == [2, 2, 0.5, 0.5]
    histogram.add(values.numpy(), 1.0, weight=3, gains=gains)
    assert histogram.costs.tolist() == [8, 8, 2, 2]
    histogram.add(tf.constant([[1.9]]), 1.9, gains=np.array([7.0]))
    assert (histogram.costs.tolist(), histogram.upper) == ([16, 4, 0, 7], 2.0)


def test_histogram_has_no_costs_without_gains() -> None:
    histogram = Histogram(4)
    add(histogram, 1.0)
    add(histogram, 3.0)
    assert histogram.costs is None
