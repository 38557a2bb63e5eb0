"""The model's calls in calibration: as a graph or eagerly, with the same ranges."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.calibrators.calibration import IN_ALL, PER_SAMPLE
from qat_lib.keras.calibration import Histogram
from qat_lib.keras.calibration.observing import ModelCalls, TensorHistograms

IMAGES = np.random.default_rng(5).normal(size=(20, 24, 24, 3)).astype("float32")


def network() -> Any:
    keras.utils.set_random_seed(4)
    x = keras.Input((24, 24, 3))
    y = keras.layers.Conv2D(16, 3, activation="relu", name="first")(x)
    y = keras.layers.Conv2D(8, 3, name="second")(y)
    return qat_lib.quantize_model(keras.Model(x, y))


class Eager(keras.layers.Layer):
    """A layer that can't be traced."""

    def call(self, x: Any) -> Any:
        """Return ``x`` by way of NumPy."""
        return tf.constant(np.asarray(x))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return ``input_shape``."""
        return input_shape


def ranges(report: Any) -> dict[str, float]:
    return {name: tensor.amax for name, tensor in report.tensors.items()}


def test_graph_and_eager_calls_give_the_same_ranges() -> None:
    model = network()
    batches = [IMAGES[start : start + 4] for start in range(0, 20, 4)]
    graph = qat_lib.calibrate(model, IMAGES, "percentile", batch_size=4)
    mixed = qat_lib.calibrate(model, [*batches[:3], IMAGES[12:15], IMAGES[15:]], "percentile")
    assert ranges(graph) == pytest.approx(ranges(mixed), rel=1e-2)
    assert graph.samples == mixed.samples == 20
    exact = qat_lib.calibrate(model, IMAGES, "max", batch_size=20)
    largest = {name: tensor.observed_max for name, tensor in graph.tensors.items()}
    assert ranges(exact) == pytest.approx(largest, rel=1e-6)


def test_calls_trace_a_model_once() -> None:
    calls: list[bool] = []

    class Counting(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            calls.append(tf.executing_eagerly())
            return x

    x = keras.Input((2,))
    model = keras.Model(x, qat_lib.TensorQuantizer(name="q")(Counting()(x)))
    calls.clear()
    report = qat_lib.calibrate(model, np.arange(18, dtype="float32").reshape(9, 2), batch_size=2)
    assert calls == [False, True]
    assert (report.tensors["q"].values, report.tensors["q"].observed_max) == (18, 17.0)


def test_calls_run_eagerly_what_cannot_be_traced() -> None:
    x = keras.Input((2,))
    model = keras.Model(x, qat_lib.TensorQuantizer(name="q")(Eager()(x)))
    found = qat_lib.calibrate(model, np.arange(20, dtype="float32").reshape(10, 2), batch_size=2)
    assert (found.batches, found.tensors["q"].amax) == (5, pytest.approx(19, rel=1e-3))


def test_calls_count_more_of_few_samples() -> None:
    histograms = TensorHistograms()
    assert histograms.budget == PER_SAMPLE
    model = network()
    few = qat_lib.calibrate(model, IMAGES[:4], batch_size=2)
    assert all(tensor.values % 4 == 0 for tensor in few.tensors.values())
    assert IN_ALL // 4 > 22 * 22 * 16


def test_calls_name_the_first_tensor_that_is_not_finite() -> None:
    data = IMAGES.copy()
    data[17] = np.nan
    with pytest.raises(qat_lib.errors.CalibrationError, match="has NaN or infinite"):
        qat_lib.calibrate(network(), data, batch_size=2)


def test_calls_take_batches_by_name() -> None:
    inputs = {name: keras.Input((2,), name=name) for name in "ab"}
    outputs = [qat_lib.TensorQuantizer(name=f"q{name}")(x) for name, x in inputs.items()]
    model = keras.Model(inputs, outputs)
    histograms = TensorHistograms()
    calls = ModelCalls(model, histograms)
    with qat_lib.keras.quantizers.collecting(histograms):
        for value in (1.0, 2.0):
            calls({"a": np.full((3, 2), value, "f4"), "b": np.full((3, 2), -3 * value, "f4")})
    assert {name: found.observed_max for name, found in histograms.found.items()} == {
        "qa": 2.0,
        "qb": 6.0,
    }


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
