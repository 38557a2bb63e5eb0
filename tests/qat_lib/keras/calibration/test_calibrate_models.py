"""Calibration: histograms, the four methods, and what ``calibrate`` does to a model."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import quantization_oracle as oracle
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import layers

from qat_lib import QuantizationSpec, TensorQuantizer, calibrate, model_quantizers, quantize_model
from qat_lib.errors import CalibrationError
from qat_lib.keras.calibration import METHODS, Histogram, range_from_histogram
from qat_lib.keras.quantizers import AMAX_FLOOR


def histogram_of(*arrays: np.ndarray) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        histogram.add(tf.constant(array, tf.float32), float(np.abs(array).max()))
    return histogram


def normal(count: int = 20000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def mean_squared_error(x: np.ndarray, amax: float) -> float:
    return float(np.mean((x - oracle.fake_quantize(x, amax)) ** 2))


@settings(max_examples=40, deadline=None)
@given(
    arrays=st.lists(
        hnp.arrays(
            np.float32,
            st.integers(1, 30),
            elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_value_is_lost_as_histogram_grows(arrays: list[np.ndarray]) -> None:
    histogram = histogram_of(*arrays)
    assert histogram.counts.sum() == sum(len(a) for a in arrays)
    assert histogram.observed_max == max(float(np.abs(a).max()) for a in arrays)
    assert histogram.upper >= histogram.observed_max
    assert len(histogram.edges) == len(histogram.counts) + 1


def test_the_order_of_the_batches_changes_little() -> None:
    small, large = normal(), normal(seed=1) * 5
    for method in METHODS:
        ranges = [
            range_from_histogram(histogram_of(*pair), method)
            for pair in ((small, large), (large, small))
        ]
        assert ranges[0] == pytest.approx(ranges[1], rel=0.03)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "x",
    [
        normal(),
        np.abs(normal()),
        np.float32([3.0]),
        np.float32([-2.0, 0.0]),
        normal() * 1e-6,
        normal() * 1e6,
    ],
)
def test_range_is_positive_and_not_beyond_data(method: str, x: np.ndarray) -> None:
    amax = range_from_histogram(histogram_of(x), method)
    assert 0 < amax <= np.abs(x).max()


def test_zeros_alone_give_a_range_of_zero() -> None:
    assert {range_from_histogram(histogram_of(np.zeros(5)), method) for method in METHODS} == {0.0}


def test_the_maximum() -> None:
    assert range_from_histogram(histogram_of(normal()), "max") == np.abs(normal()).max()


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9])
def test_the_percentile_is_numpy_s(percentile: float) -> None:
    x = normal()
    expected = np.percentile(np.abs(x), percentile)
    bin_width = np.abs(x).max() / 2048
    assert (
        abs(range_from_histogram(histogram_of(x), "percentile", percentile) - expected)
        <= 2 * bin_width
    )


def test_the_percentile_of_100_is_the_maximum() -> None:
    x = normal()
    assert range_from_histogram(histogram_of(x), "percentile", 100) == np.abs(x).max()


def test_mse_beats_maximum_where_there_are_outliers() -> None:
    x = np.concatenate([normal(), np.float32([60.0])])
    amax = range_from_histogram(histogram_of(x), "mse")
    errors = [mean_squared_error(x, a) for a in np.linspace(0.5, 60, 200)]
    assert mean_squared_error(x, amax) <= min(errors) * 1.1
    assert mean_squared_error(x, amax) < mean_squared_error(x, 60.0)


def test_mse_takes_smaller_range_for_fewer_bits() -> None:
    histogram = histogram_of(normal())
    assert range_from_histogram(histogram, "mse", num_bits=4) < range_from_histogram(
        histogram, "mse", num_bits=8
    )


def test_entropy_clips_only_a_long_tail() -> None:
    tail = np.concatenate([normal(), np.float32([60.0])])
    assert range_from_histogram(histogram_of(tail), "entropy") < 30
    uniform = np.random.default_rng(2).random(50000).astype(np.float32)
    assert range_from_histogram(histogram_of(uniform), "entropy") > 0.9


@pytest.mark.matrix_except("x4")
@pytest.mark.parametrize(
    "x",
    [
        normal(300),
        normal(20000) ** 3,
        np.maximum(normal(5000), 0),
        np.exp(normal(2000)),
        normal(700) / normal(700, 9),
    ],
)
def test_entropy_is_the_published_one(x: np.ndarray) -> None:
    counts, edges = np.histogram(np.abs(x), bins=2048, range=(0, np.abs(x).max()))
    expected = edges[1] * oracle.published_entropy(counts, 128)
    assert range_from_histogram(histogram_of(x), "entropy") == pytest.approx(expected, rel=1e-6)


def test_entropy_leaves_zeros_out() -> None:
    """However many: half of a ReLU's outputs are zeros.

    They say nothing about the range.
    """
    x = normal(5000)
    ranges = {
        range_from_histogram(histogram_of(x, np.zeros(count)), "entropy")
        for count in (1, 1000, 500000)
    }
    assert len(ranges) == 1
    assert ranges != {range_from_histogram(histogram_of(x), "max")}


def test_an_unknown_method_or_percentile_is_refused() -> None:
    histogram = histogram_of(normal())
    with pytest.raises(CalibrationError, match="among max, percentile"):
        range_from_histogram(histogram, "median")
    for percentile in (0, -1, 100.5, float("nan")):
        with pytest.raises(CalibrationError, match=r"in \(0, 100\]"):
            range_from_histogram(histogram, "percentile", percentile)


@pytest.fixture
def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 6, 2), name="x")
    y = layers.Conv2D(3, 3, activation="relu", name="conv")(x)
    model = keras.Model(x, layers.Dense(2, name="head")(layers.Flatten(name="flat")(y)))
    return quantize_model(model)


def images(count: int = 24) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, 6, 6, 2)).astype(np.float32)


def test_every_activation_gets_its_range(model: keras.Model) -> None:
    x = images()
    seen: list[int] = []
    report = calibrate(model, x, "max", batch_size=10, on_batch=seen.append)
    assert seen == [1, 2, 3]
    assert (report.batches, report.samples) == (3, 24)
    assert set(report.tensors) == {"x_quantizer", "flat_quantizer"}
    found = model_quantizers(model)
    assert float(found["x_quantizer"].amax) == np.abs(x).max()
    assert (
        report.tensors["x_quantizer"].amax
        == report.tensors["x_quantizer"].observed_max
        == np.abs(x).max()
    )
    assert report.tensors["x_quantizer"].values == x.size
    assert all(quantizer.calibrated for quantizer in found.values())


def test_what_is_observed_is_the_float_tensor(model: keras.Model) -> None:
    """Later layers see unquantized values, whatever the ranges were before."""
    x = images()
    found = model_quantizers(model)
    found["x_quantizer"].amax = 0.01
    calibrate(model, x, "max")
    for quantizer in found.values():
        quantizer.disable()
    hidden = keras.Model(model.inputs[0], model.get_layer("flat").output)
    assert float(found["flat_quantizer"].amax) == pytest.approx(
        float(np.abs(hidden(x)).max()), rel=1e-6
    )


def batched(kind: str) -> Any:
    x, y = images(), np.zeros((24, 2), np.float32)
    if kind == "array":
        return x
    if kind == "tensor":
        return tf.constant(x)
    if kind == "dataset of pairs":
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    if kind == "dataset":
        return tf.data.Dataset.from_tensor_slices(x).batch(8)
    if kind == "list":
        return [x[:12], x[12:]]

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, 24, 6):
            yield x[start : start + 6], y[start : start + 6]

    return generate()


@pytest.mark.parametrize(
    "kind", ["array", "tensor", "dataset of pairs", "dataset", "list", "generator"]
)
def test_data_of_every_kind_gives_same_ranges(model: keras.Model, kind: str) -> None:
    report = calibrate(model, batched(kind), "max")
    assert report.samples == 24
    assert report.tensors["x_quantizer"].amax == np.abs(images()).max()


def test_several_inputs() -> None:
    a, b = keras.Input((3,), name="a"), keras.Input((4,), name="b")
    quantized = quantize_model(
        keras.Model([a, b], layers.Add()([layers.Dense(2)(a), layers.Dense(2)(b)]))
    )
    x = [np.full((5, 3), 2.0, np.float32), np.full((5, 4), 3.0, np.float32)]
    report = calibrate(quantized, [(x, np.zeros(5))], "max")
    assert report.tensors["a_quantizer"].amax == 2.0
    assert report.tensors["b_quantizer"].amax == 3.0
    assert report.samples == 5


def test_a_dictionary_of_inputs() -> None:
    a, b = keras.Input((3,), name="a"), keras.Input((4,), name="b")
    y = layers.Add()([layers.Dense(2)(a), layers.Dense(2)(b)])
    quantized = quantize_model(keras.Model({"a": a, "b": b}, y))
    report = calibrate(quantized, [{"a": np.ones((5, 3)), "b": np.ones((5, 4))}], "max")
    assert report.samples == 5


def test_calibrated_ranges_stay_in_training_by_default(model: keras.Model) -> None:
    for freeze in (True, False):
        calibrate(model, images(), "max", freeze=freeze)
        before = float(model_quantizers(model)["x_quantizer"].amax)
        model.compile("sgd", "mse")
        model.fit(images() * 3, np.zeros((24, 2)), verbose=0)
        assert (float(model_quantizers(model)["x_quantizer"].amax) == before) is freeze
        for quantizer in model_quantizers(model).values():
            quantizer.unfreeze()


def test_quantizer_uses_its_own_calibrator() -> None:
    x = keras.Input((6, 6, 2), name="x")
    model = keras.Model(x, layers.Conv2D(3, 3, name="conv")(x))
    spec = QuantizationSpec().add("conv", calibrator="max")
    report = calibrate(quantize_model(model, quantization_spec=spec), images(), "mse")
    assert report.tensors["x_quantizer"].method == "max"


def test_calibration_leaves_weights_and_statistics_alone(model: keras.Model) -> None:
    kernels = [w.numpy() for w in model.trainable_variables]
    calibrate(model, images())
    for before, after in zip(kernels, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(before, after.numpy())


def test_calibration_twice_gives_the_same(model: keras.Model) -> None:
    first, second = calibrate(model, images()), calibrate(model, images())
    assert {n: t.amax for n, t in first.tensors.items()} == {
        n: t.amax for n, t in second.tensors.items()
    }


def test_a_dead_tensor_gets_the_least_range(model: keras.Model) -> None:
    report = calibrate(model, np.zeros((4, 6, 6, 2), np.float32))
    assert report.tensors["x_quantizer"].amax == np.float32(AMAX_FLOOR)
    assert model_quantizers(model)["x_quantizer"].scale > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_values_change_nothing(model: keras.Model, bad: float) -> None:
    before = {n: q.amax.tolist() for n, q in model_quantizers(model).items()}
    x = images()
    x[-1, 0, 0, 0] = bad
    with pytest.raises(CalibrationError, match="'x_quantizer' has NaN or infinite"):
        calibrate(model, x, batch_size=8)
    assert {n: q.amax.tolist() for n, q in model_quantizers(model).items()} == before
    assert not model_quantizers(model)["x_quantizer"].calibrated


@pytest.mark.parametrize(
    "data", [[], np.zeros((0, 6, 6, 2), np.float32), iter(())], ids=["list", "array", "iterator"]
)
def test_no_data_is_refused(model: keras.Model, data: Any) -> None:
    with pytest.raises(CalibrationError, match="empty"):
        calibrate(model, data)


def test_data_of_no_kind_is_refused(model: keras.Model) -> None:
    with pytest.raises(CalibrationError, match="Received: int"):
        calibrate(model, 5)


@pytest.mark.parametrize("percentile", [0, 101, -5])
def test_bad_percentile_is_refused_before_reading_data(
    model: keras.Model, percentile: float
) -> None:
    def unread() -> Iterator[np.ndarray]:
        raise AssertionError("the data was read")
        yield images()

    with pytest.raises(CalibrationError, match="percentile must be in"):
        calibrate(model, unread(), percentile=percentile)


def test_a_model_without_quantizers_is_refused() -> None:
    x = keras.Input((4,))
    with pytest.raises(CalibrationError, match="quantize_model first"):
        calibrate(keras.Model(x, layers.Dense(2)(x)), np.ones((2, 4)))


def test_error_in_data_leaves_model_usable(model: keras.Model) -> None:
    """The observing ends with the call, whatever ends the call."""

    def fails() -> Iterator[np.ndarray]:
        yield images()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        calibrate(model, fails())
    before = model(images())
    model_quantizers(model)["x_quantizer"].amax = 0.5
    assert not np.array_equal(before, model(images()))


def two_inputs(form: type) -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    y = layers.Add()([layers.Dense(3)(a), layers.Dense(3)(b)])
    return quantize_model(keras.Model({"a": a, "b": b} if form is dict else form([a, b]), y))


@pytest.mark.parametrize("form", [dict, list, tuple])
@pytest.mark.parametrize("batched", [False, True])
def test_multi_input_models_take_keras_data_forms(form: type, batched: bool) -> None:
    model, arrays = (
        two_inputs(form),
        {"a": normal(80).reshape(20, 4), "b": 3 * normal(80, 1).reshape(20, 4)},
    )
    whole = arrays if form is dict else form(arrays.values())
    parts = [{k: v[i : i + 8] for k, v in arrays.items()} for i in (0, 8, 16)]
    batches = parts if form is dict else [form(part.values()) for part in parts]
    report = calibrate(model, batches if batched else whole, "max", batch_size=8)
    assert (report.batches, report.samples) == (3, 20)
    for name, array in arrays.items():
        assert model_quantizers(model)[f"{name}_quantizer"].amax == pytest.approx(
            np.abs(array).max()
        )


def test_inputs_of_different_lengths_are_refused() -> None:
    with pytest.raises(CalibrationError, match="Received: 5, 4"):
        calibrate(two_inputs(list), [np.ones((5, 4), "f4"), np.ones((4, 4), "f4")])


def test_unsigned_ranges_have_twice_the_steps() -> None:
    x = np.abs(normal()) ** 3
    signed, unsigned = (
        range_from_histogram(histogram_of(x), "mse", unsigned=u) for u in (False, True)
    )
    assert unsigned > signed  # with finer steps it pays to clip less
    errors = [
        np.mean((x - oracle.fake_quantize(x, amax, unsigned=True)) ** 2)
        for amax in (signed, unsigned)
    ]
    assert errors[1] < errors[0]


def test_negative_values_under_unsigned_quantizer_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = keras.Input((64,))
    model = keras.Model(
        x, [TensorQuantizer(name="cut", unsigned=True)(x), TensorQuantizer(name="kept")(x)]
    )
    data = np.linspace(-5, 2, 128, dtype=np.float32).reshape(2, 64)
    report = calibrate(model, data, "max")
    assert report.tensors["cut"].amax == 2.0
    assert report.tensors["kept"].amax == 5.0
    assert "which they turn into 0: 1 of them, such as cut" in caplog.text
    caplog.clear()
    calibrate(model, np.abs(data), "max")
    assert caplog.text == ""
