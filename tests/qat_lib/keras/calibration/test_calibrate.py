"""``calibrate`` on quantizers alone: its requests to a model, its effects.

That is quicker than on whole networks.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import qat_lib
from qat_lib import QuantizationSpec, TensorQuantizer, calibrate, model_quantizers, quantize_model
from qat_lib.errors import CalibrationError
from qat_lib.keras.calibration import range_from_histogram
from qat_lib.keras.calibration.calibrate import keras_gains
from qat_lib.keras.calibration.observing import TensorHistograms


def hand_made(**options: Any) -> keras.Model:
    """A quantizer alone on its input, of two values a sample."""
    x = keras.Input((2,), name="x")
    return keras.Model(x, TensorQuantizer(name="q", **options)(x))


def test_signed_quantizers_are_never_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    calibrate(hand_made(), np.float32([[-3.0, 2.0]]), "max")
    assert caplog.text == ""


def test_calibrate_has_defaults() -> None:
    defaults = calibrate.__kwdefaults__
    assert defaults == {"percentile": None, "batch_size": 32, "freeze": True, "on_batch": None}
    model = hand_made()
    report = calibrate(model, np.ones((65, 2), np.float32))
    assert (report.batches, report.samples, report.tensors["q"].method) == (3, 65, "auto")
    assert model_quantizers(model)["q"].frozen


def test_a_given_percentile_is_that_of_the_method() -> None:
    found = calibrate(hand_made(), VALUES, percentile=60).tensors["q"]
    named = calibrate(hand_made(), VALUES, "percentile", percentile=60).tensors["q"]
    assert (found.method, found.amax) == ("percentile", named.amax)


def test_a_single_sample_is_enough() -> None:
    assert calibrate(hand_made(), np.float32([[1, -2]]), "max").tensors["q"].amax == 2.0


def test_first_non_finite_tensor_is_named() -> None:
    x = keras.Input((2,), name="x")
    first = TensorQuantizer(name="first")(x)
    model = keras.Model(x, TensorQuantizer(name="second")(first))
    with pytest.raises(CalibrationError, match="'first' has NaN"):
        calibrate(model, np.float32([[np.nan, 1]]), "max")


def test_calibrate_runs_the_model_in_inference() -> None:
    x = keras.Input((64,), name="x")
    model = keras.Model(x, TensorQuantizer(name="q")(layers.Dropout(0.5)(x)))
    assert calibrate(model, np.ones((4, 64), np.float32), "max").tensors["q"].amax == 1.0


def test_weights_get_own_range_under_every_policy() -> None:
    x = keras.Input((2,), name="x")
    model = quantize_model(keras.Model(x, layers.Dense(2, use_bias=False, name="head")(x)))
    kernel = np.float32([[1, -3], [2, 0.5]])
    model.get_layer("quant_head").layer.kernel.assign(kernel)
    report = calibrate(model, np.ones((1, 2), np.float32), "max")
    (weight,) = (q for q in model_quantizers(model).values() if q.of_weight)
    assert weight.name not in report.tensors
    np.testing.assert_array_equal(weight.amax, [[2, 3]])


def test_report_shows_no_counts_in_its_text() -> None:
    statistics = calibrate(hand_made(), np.float32([[1, -2]]), "max").tensors["q"]
    assert "counts" not in repr(statistics)
    assert "edges" not in repr(statistics)
    assert statistics.counts is not None
    assert statistics.counts.sum() == statistics.values == 2


def test_tuple_is_a_batch_with_labels() -> None:
    x, y = np.float32([[1, 2]]), np.float32([[9, 9]])
    report = calibrate(hand_made(), [(x, y), [x, y]], "max")
    assert (report.samples, report.tensors["q"].amax) == (2, 2.0)


@pytest.mark.parametrize("data", [{"a": [1.0]}, {}, 5, None])
def test_data_must_be_arrays_or_batches(data: Any) -> None:
    with pytest.raises(CalibrationError, match=f"Received: {type(data).__name__}"):
        calibrate(hand_made(), data)


VALUES = np.arange(1, 15, dtype=np.float32).reshape(7, 2)


def two(form: Any) -> keras.Model:
    """Return a model of inputs ``a`` and ``b``, each with a quantizer."""
    inputs = {name: keras.Input((2,), name=name) for name in "ab"}
    outputs = [TensorQuantizer(name=f"q{name}")(x) for name, x in inputs.items()]
    return keras.Model(inputs if form is dict else form(inputs.values()), outputs)


@pytest.mark.parametrize("form", [dict, list])
def test_calibrate_names_lengths_of_inputs_that_differ(form: Any) -> None:
    data = {"a": VALUES, "b": VALUES[:5]}
    with pytest.raises(CalibrationError, match=r"as many samples for each input\. Received: 7, 5"):
        calibrate(two(form), data if form is dict else list(data.values()))


def test_calibrate_takes_two_arrays_for_batches() -> None:
    report = calibrate(hand_made(), [VALUES, VALUES[:2]], "max")
    assert (report.batches, report.samples) == (2, 9)


def test_calibrate_takes_a_list_of_one_batch() -> None:
    report = calibrate(hand_made(), [VALUES], "max", batch_size=3)
    assert (report.batches, report.samples) == (1, 7)


def test_calibrate_takes_a_single_value() -> None:
    x = keras.Input((1,), name="x")
    report = calibrate(keras.Model(x, TensorQuantizer(name="q")(x)), np.float32([[-3]]), "max")
    assert (report.tensors["q"].amax, report.tensors["q"].values) == (3.0, 1)


def test_calibrate_reports_what_it_saw() -> None:
    data = np.float32([[0.5, -8.0], [1.0, 2.0]])
    found = calibrate(hand_made(), data, "percentile", percentile=75, batch_size=1).tensors["q"]
    assert (found.observed_max, found.method, found.values) == (8.0, "percentile", 4)
    assert 2.0 <= found.amax < 2.01
    assert found.counts is not None
    assert found.edges is not None
    assert (found.counts.sum(), len(found.edges)) == (4, len(found.counts) + 1)
    assert found.edges[-1] >= 8.0


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("bits", [3, 8])
def test_calibrate_goes_by_integers_of_quantizer(unsigned: bool, bits: int) -> None:
    values = np.random.default_rng(0).exponential(size=(500, 2)).astype(np.float32)
    model = hand_made(unsigned=unsigned, num_bits=bits)
    histograms = TensorHistograms()
    histograms.observe(model.layers[-1], tf.constant(values))
    expected = range_from_histogram(histograms.found["q"], "mse", num_bits=bits, unsigned=unsigned)
    assert calibrate(model, values, "mse", batch_size=500).tensors["q"].amax == pytest.approx(
        expected
    )


def test_calibrate_skips_quantizers_that_need_no_data() -> None:
    x = keras.Input((2,), name="x")
    model = keras.Model(
        x, TensorQuantizer(name="q")(TensorQuantizer(name="always", range_policy="current")(x))
    )
    assert list(calibrate(model, VALUES, "max").tensors) == ["q"]


def test_calibrate_counts_the_unsigned_quantizers_that_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = keras.Input((2,), name="x")
    quantizers = [TensorQuantizer(name=name, unsigned=True)(x) for name in "cab"]
    kept = TensorQuantizer(name="kept", unsigned=True)(layers.ReLU()(x))
    calibrate(
        keras.Model(x, [*quantizers, kept]), np.float32([[-1, 2], [-3, 1]]), "max", batch_size=1
    )
    assert "turn into 0: 3 of them, such as a." in caplog.text


@pytest.mark.parametrize("percentile", [0, 101])
def test_calibrate_refuses_a_percentile_before_it_reads(percentile: float) -> None:
    def unread() -> Any:
        raise AssertionError("the data was read")
        yield VALUES

    with pytest.raises(CalibrationError, match="percentile must be in"):
        calibrate(hand_made(), unread(), percentile=percentile)


@pytest.mark.parametrize("policy", ["frozen", "learned"])
def test_calibrate_sets_ranges_of_weights_from_weights(policy: str) -> None:
    x = keras.Input((2,), name="x")
    spec = QuantizationSpec().add("dense", weight_range_policy=policy)
    model = quantize_model(keras.Model(x, layers.Dense(2, name="dense")(x)), quantization_spec=spec)
    kernel = next(weight for weight in model.weights if weight.path.endswith("kernel"))
    kernel.assign([[1, -2], [3, 0.5]])
    calibrate(model, np.ones((1, 2), np.float32), "max")
    weight = next(
        quantizer for quantizer in model_quantizers(model).values() if quantizer.of_weight
    )
    np.testing.assert_allclose(weight.amax.ravel(), [3, 2], rtol=1e-6)


FAR, NEAR = 100.0, 1.0


def data(count: int = 20) -> np.ndarray:
    """Return inputs whose second channel reaches 100 times as far as the first."""
    values = np.random.default_rng(0).uniform(-1, 1, (count, 6, 6, 2))
    return (values * (NEAR, FAR)).astype(np.float32)


def noise_gains(model: Any, channels: int) -> np.ndarray:
    """Return the power of the outputs, in the middle, for noise in each channel."""
    rng = np.random.default_rng(1)
    found = []
    for channel in range(channels):
        x = np.zeros((400, 7, 7, channels), np.float32)
        x[..., channel] = rng.normal(size=x.shape[:3])
        found.append(np.mean(model(x).numpy()[:, 2:5, 2:5] ** 2))
    return np.asarray(found) / np.mean(found)


def quantized(*stack: Any, channels: int = 4) -> tuple[Any, Any]:
    """Return a model of layers in a row and its quantized form."""
    x = inputs = keras.Input((7, 7, channels), name="image")
    for layer in stack:
        x = layer(x)
    model = keras.Model(inputs, x)
    rng = np.random.default_rng(2)
    for variable in model.weights:
        if variable.name in ("kernel", "gamma", "moving_variance"):
            variable.assign(rng.uniform(0.2, 2.0, variable.shape))
    return model, qat_lib.quantize_model(model)


STACKS = {
    "convolution": [layers.Conv2D(3, 3, padding="same", use_bias=False)],
    "groups": [layers.Conv2D(6, 3, padding="same", groups=2, use_bias=False)],
    "depthwise": [layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, use_bias=False)],
    "dense": [layers.Dense(5, use_bias=False)],
    "normalized": [layers.Conv2D(3, 1, use_bias=False), layers.BatchNormalization()],
    "depthwise, normalized": [
        layers.DepthwiseConv2D(3, padding="same", use_bias=False),
        layers.BatchNormalization(scale=False),
    ],
    "padded": [layers.ZeroPadding2D(1), layers.Conv2D(3, 3, use_bias=False)],
}


@pytest.mark.parametrize("name", STACKS)
def test_gains_are_those_of_noise(name: str) -> None:
    stack = [type(layer).from_config(layer.get_config()) for layer in STACKS[name]]
    model, with_quantizers = quantized(*stack)
    (found,) = keras_gains(with_quantizers).values()
    np.testing.assert_allclose(found, noise_gains(model, 4), rtol=0.1)
    assert np.ptp(found) > 0.2


def two_readers() -> Any:
    x = keras.Input((6, 6, 2), name="image")
    conv = layers.Conv2D(1, 1, use_bias=False, name="conv")
    model = keras.Model(x, [conv(x), layers.Add(name="add")([x, x])])
    conv.set_weights([np.array([0.0, 5.0], np.float32).reshape(1, 1, 2, 1)])
    return qat_lib.quantize_model(model, "full", qat_lib.QuantizationSpec().add("add"))


def test_gains_of_several_readers_add_up() -> None:
    ((_, found),) = keras_gains(two_readers()).items()
    # The convolution reads the second channel alone; the addition reads both twice.
    np.testing.assert_allclose(found, [2.0, 4.0])


def test_a_tensor_without_weighted_readers_has_no_gains() -> None:
    a, b = keras.Input((6, 6, 2), name="a"), keras.Input((6, 6, 2), name="b")
    model = keras.Model([a, b], layers.Add(name="add")([a, b]))
    spec = qat_lib.QuantizationSpec().add("add")
    assert keras_gains(qat_lib.quantize_model(model, "partial", spec)) == {}


def test_a_model_without_a_graph_has_no_gains() -> None:
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    assert keras_gains(Own()) == {}


def model_reading(channel: int, *, pad: bool = False) -> Any:
    """Return a quantized convolution that computes with one channel of two."""
    x = inputs = keras.Input((6, 6, 2), name="image")
    x = layers.ZeroPadding2D(1, name="pad")(x) if pad else x
    conv = layers.Conv2D(1, 1, use_bias=False, name="conv")
    model = keras.Model(inputs, conv(x))
    conv.set_weights([np.eye(2, dtype=np.float32)[channel].reshape(1, 1, 2, 1)])
    return qat_lib.quantize_model(model)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize(("channel", "reach"), [(0, NEAR), (1, FAR)])
def test_the_default_range_follows_what_the_reader_computes_with(
    channel: int, reach: float, pad: bool
) -> None:
    report = qat_lib.calibrate(model_reading(channel, pad=pad), data())
    (statistics,) = report.tensors.values()
    assert statistics.method == "auto"
    assert statistics.amax == pytest.approx(reach, rel=0.1)


def test_auto_of_one_quantizer_leaves_the_others_to_the_method() -> None:
    x = keras.Input((6, 6, 2), name="image")
    y = layers.Conv2D(2, 1, name="first")(x)
    model = keras.Model(x, layers.Conv2D(2, 1, name="second")(y))
    spec = qat_lib.QuantizationSpec().add("second", calibrator="auto")
    report = qat_lib.calibrate(qat_lib.quantize_model(model, "full", spec), data(), "max")
    assert [tensor.method for tensor in report.tensors.values()] == ["max", "auto"]


def test_gains_of_other_channels_count_alike() -> None:
    quantizer = qat_lib.TensorQuantizer(name="q")
    histograms = TensorHistograms({"q": np.array([9.0, 1.0])})
    for width in (2, 3):
        histograms.observe(quantizer, tf.ones((5, width)))
    costs = histograms.found["q"].costs
    assert costs is not None
    assert costs[-1] == 5 * (9 + 1) + 5 * 3
