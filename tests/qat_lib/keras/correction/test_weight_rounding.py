"""adaround: fewer errors with few bits, in the model, its file and after an interruption."""

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib import QuantizationSpec
from qat_lib.errors import CalibrationError, ConfigError


def images(samples=48, seed=0):
    generator = np.random.default_rng(seed)
    smooth = generator.normal(size=(samples, 4, 4, 3)).repeat(3, axis=1).repeat(3, axis=2)
    return (smooth + 0.2 * generator.normal(size=smooth.shape)).astype("float32")


def network():
    keras.utils.set_random_seed(2)
    x = keras.Input((12, 12, 3), name="image")
    y = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="conv")(x)
    y = keras.layers.BatchNormalization(name="bn")(y)
    y = keras.layers.ReLU(6.0, name="relu")(y)
    y = keras.layers.DepthwiseConv2D(3, padding="same", activation="relu", name="dw")(y)
    y = keras.layers.Conv2D(12, 1, name="point")(y)
    y = keras.layers.GlobalAveragePooling2D(name="pool")(keras.layers.ReLU(name="relu2")(y))
    return keras.Model(x, keras.layers.Dense(5, name="logits")(y), name="net")


def quantized(model, bits=4, policy="current"):
    spec = QuantizationSpec().add(
        ".*", is_regex=True, weight_num_bits=bits, weight_range_policy=policy
    )
    made = qat_lib.quantize_model(model, quantization_spec=spec)
    qat_lib.calibrate(made, images(), "max")
    return made


def error(made, model, seed=1):
    other = images(seed=seed)
    expected = model.predict(other, verbose=0)
    return np.square(made.predict(other, verbose=0) - expected).mean() / np.square(expected).mean()


@pytest.mark.matrix
@pytest.mark.parametrize("bits", [3, 4])
def test_adaround_lowers_the_error_on_other_data(bits):
    model = network()
    nearest, rounded = quantized(model, bits), quantized(model, bits)
    qat_lib.correct_bias(nearest, images())
    report = qat_lib.adaround(rounded, images())
    assert error(rounded, model) < 0.7 * error(nearest, model)
    assert list(report.errors) == ["quant_conv", "quant_dw", "quant_point", "quant_logits"]
    assert all(after <= before for before, after in report.errors.values())
    assert report.samples == 48
    assert report.skipped == {}


@pytest.mark.parametrize("policy", ["current", "frozen", "learned"])
def test_adaround_writes_weights_on_the_grid(policy):
    made = quantized(network(), policy=policy)
    qat_lib.adaround(made, images())
    for layer in ("quant_conv", "quant_dw", "quant_point", "quant_logits"):
        wrapper = made.get_layer(layer)
        (quantizer,) = wrapper.weight_quantizers
        kernel = wrapper.layer.kernel.numpy()
        integers = kernel / quantizer.scale
        np.testing.assert_allclose(integers, np.rint(integers), atol=1e-3)
        np.testing.assert_allclose(quantizer(kernel).numpy(), kernel, rtol=1e-5, atol=1e-7)


def test_adaround_takes_the_mean_error_out():
    model = network()
    plain, corrected = quantized(model, 3), quantized(model, 3)
    assert qat_lib.adaround(plain, images(), correct=False).shifts == {}
    assert set(qat_lib.adaround(corrected, images()).shifts) >= {"quant_dw", "quant_logits"}
    np.testing.assert_array_equal(plain.get_layer("quant_dw").layer.bias, 0)
    assert np.abs(corrected.get_layer("quant_dw").layer.bias).max() > 0


def test_adaround_survives_export(tmp_path):
    made = quantized(network(), 8)
    qat_lib.adaround(made, images())
    qat_lib.export_onnx(made, tmp_path / "net.onnx")
    assert qat_lib.check_parity(made, tmp_path / "net.onnx", images()).passed


class KilledError(Exception):
    """In place of a kill."""


def test_adaround_resumes_where_it_was_interrupted(tmp_path):
    model, state = network(), tmp_path / "state"
    whole, resumed = quantized(model), quantized(model)
    qat_lib.adaround(whole, images())

    def stop(done, _):
        if done == 2:
            raise KilledError

    with pytest.raises(KilledError):
        qat_lib.adaround(quantized(model), images(), state=state, on_layer=stop)
    seen = []
    report = qat_lib.adaround(
        resumed, images(), state=state, on_layer=lambda *done: seen.append(done)
    )
    assert (report.resumed, seen) == (2, [(1, 4), (2, 4), (3, 4), (4, 4)])
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_adaround_begins_anew_with_other_data(tmp_path, caplog):
    model, state = network(), tmp_path / "state"
    qat_lib.adaround(quantized(model), images(), state=state)
    assert qat_lib.adaround(quantized(model), images(seed=3), state=state).resumed == 0
    assert "is of another model, other data or other settings" in caplog.text


def test_adaround_begins_anew_with_other_settings(tmp_path):
    model, state = network(), tmp_path / "state"
    qat_lib.adaround(quantized(model), images(), state=state)
    assert qat_lib.adaround(quantized(model, bits=6), images(), state=state).resumed == 0
    again = quantized(model, bits=6)
    assert qat_lib.adaround(again, images(), state=state, correct=False).resumed == 0


def test_adaround_refuses_a_damaged_state(tmp_path):
    (tmp_path / "state").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="remove it"):
        qat_lib.adaround(quantized(network()), images(), state=tmp_path / "state")


def test_adaround_refuses_a_float_model():
    with pytest.raises(CalibrationError, match="no quantizer"):
        qat_lib.adaround(network(), images())


def test_adaround_says_what_it_skips():
    x = keras.Input((6, 4), name="x")
    y = keras.layers.Conv1D(4, 2, name="one")(x)
    model = keras.Model(x, keras.layers.Dense(2, name="out")(y))
    made = qat_lib.quantize_model(model)
    data = np.random.default_rng(0).normal(size=(8, 6, 4)).astype("float32")
    qat_lib.calibrate(made, data)
    report = qat_lib.adaround(made, data)
    assert report.skipped == {"quant_one": "how it computes is not known"}
    assert list(report.errors) == ["quant_out"]
