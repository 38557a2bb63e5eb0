"""correct_bias: mean errors leave with the biases."""

import keras
import numpy as np
import pytest
from keras_framework import network

import qat_lib
from qat_lib.errors import CalibrationError
from qat_lib.keras.correction import correct_bias


def images(samples=64, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.2, 1.0, size=(samples, 8, 8, 3)).astype("float32")


def quantized_at(bits, model, data, **options):
    spec = qat_lib.QuantizationSpec()
    for name in {"conv", "biased", "logits"} & {layer.name for layer in model.layers}:
        spec.add(name, num_bits=bits, **options)
    quantized = qat_lib.quantize_model(model, quantization_spec=spec)
    if not options:
        qat_lib.calibrate(quantized, data, "max")
    return quantized


def mean_error(model, quantized, data):
    return np.abs(np.mean(quantized(data) - model(data), axis=0))


def test_correct_bias_holds_on_other_data():
    model, data, other = network(), images(), images(seed=5)
    quantized = quantized_at(4, model, data, quantize_input=False)
    before = mean_error(model, quantized, other)
    correct_bias(quantized, data)
    assert mean_error(model, quantized, other).max() < 0.5 * before.max()


def test_correct_bias_leaves_training_with_batch_statistics_alone():
    """A batch's mean has the error in it, so that nothing may be taken out a second time."""
    data = images()
    x = keras.Input(data.shape[1:], name="image")
    y = keras.layers.Conv2D(4, 3, use_bias=False, name="conv")(x)
    model = keras.Model(x, keras.layers.BatchNormalization(name="bn")(y))
    quantized = quantized_at(3, model, data)
    in_training, in_inference = quantized(data, training=True), quantized(data)
    correct_bias(quantized, data)
    assert np.abs(quantized(data) - in_inference).max() > 0.01
    np.testing.assert_array_equal(quantized(data, training=True), in_training)


def test_correct_bias_leaves_an_exact_model_alone():
    model, data = network(), images()
    quantized = quantized_at(16, model, data)
    before = quantized(data).numpy()
    correct_bias(quantized, data)
    np.testing.assert_allclose(quantized(data), before, atol=2e-3)


def test_correct_bias_withstands_clipped_outliers():
    """Few clipped positions must not move the others.

    A plain mean would.
    """
    x = keras.Input((8, 8, 1), name="image")
    y = keras.layers.Conv2D(1, 1, kernel_initializer="ones", name="conv")(x)
    model = keras.Model(x, y)
    data = images()[..., :1]
    data[:, 0, 0, 0] = 100.0  # 1 of 64 positions
    quantized = qat_lib.quantize_model(model)
    for quantizer in qat_lib.model_quantizers(quantized).values():
        if not quantizer.of_weight:
            quantizer.amax = 1.0
    correct_bias(quantized, data)
    assert abs(float(quantized.get_layer("quant_conv").layer.bias.numpy()[0])) < 0.01


def test_correct_bias_needs_no_beta_in_normalization():
    model, data = network(center=False), images()
    quantized = quantized_at(4, model, data)
    before = mean_error(model, quantized, data)
    assert correct_bias(quantized, data).skipped == {}
    assert mean_error(model, quantized, data).max() < 0.5 * before.max()


def test_correct_bias_passes_over_channels_without_gamma():
    model, data = network(), images()
    quantized = quantized_at(4, model, data)
    norm = quantized.get_layer("bn")
    norm.gamma.assign(norm.gamma * [0.0, *[1.0] * (norm.gamma.shape[0] - 1)])
    mean = norm.moving_mean.numpy()
    correct_bias(quantized, data)
    assert np.all(np.isfinite(norm.moving_mean))
    assert norm.moving_mean[0] == mean[0]
    assert np.all(norm.moving_mean.numpy()[1:] != mean[1:])


def test_correct_bias_takes_the_first_samples():
    model, data = network(), images()
    one, two = quantized_at(4, model, data), quantized_at(4, model, data)
    batches = [(data[i : i + 5], None) for i in range(0, 60, 5)]
    assert correct_bias(one, batches, samples=12).samples == 12
    correct_bias(two, data[:12])
    np.testing.assert_allclose(one(data), two(data), atol=1e-5)


def test_correct_bias_reports_progress():
    model, data = network(), images()
    seen = []
    correct_bias(quantized_at(8, model, data), data, on_layer=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(("data", "samples"), [([], 64), (images(4), 0)])
def test_correct_bias_refuses(data, samples):
    quantized = quantized_at(8, network(), images())
    with pytest.raises(CalibrationError):
        correct_bias(quantized, data, samples=samples)


def test_correct_bias_leaves_layers_of_unknown_function():
    """A bias inside of a user's layer may be no sum of its outputs."""

    class Gate(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")
            self.bias = self.add_weight(shape=(3,), name="bias")

        def call(self, x):
            return keras.ops.sigmoid(x @ self.kernel + self.bias)

    class GateQuantizeWrapper(qat_lib.WeightedBaseQuantizeWrapper):
        layer_class = Gate

    x = keras.Input((5,))
    model = keras.Model(x, Gate(name="gate")(x))
    data = np.random.default_rng(0).normal(size=(32, 5)).astype("float32")
    quantized = qat_lib.quantize_model(
        model, quantization_spec=qat_lib.QuantizationSpec().add("gate")
    )
    qat_lib.calibrate(quantized, data)
    report = correct_bias(quantized, data)
    assert report.shifts == {}
    assert "not known" in report.skipped["quant_gate"]


def test_correct_bias_leaves_layers_of_float_weights():
    model, data = network(), images()
    quantized = quantized_at(8, model, data, quantize_weight=False)
    qat_lib.calibrate(quantized, data)
    report = correct_bias(quantized, data)
    assert (report.shifts, report.skipped) == ({}, {})
