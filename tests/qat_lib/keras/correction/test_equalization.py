"""equalize: the same function with channels of one range."""

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.errors import CalibrationError, UnsupportedModelError
from qat_lib.keras.correction import equalize
from qat_lib.keras.graph.layer_graph import LayerGraph
from qat_lib.keras.quantizers import ChannelReLU

RANGES = np.float32([8.0, 1.0, 0.1, 0.01])


def images(samples=32, seed=0):
    return np.random.default_rng(seed).normal(size=(samples, 8, 8, 3)).astype("float32")


def network(relu=None, *, norm=True, between=(), multiplier=1, conv_options=None, alone=False):
    """Return a network with widely different channels before a depthwise convolution.

    There are four channels. With ``alone`` those behind it can't be scaled.
    """
    keras.utils.set_random_seed(3)
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.Conv2D(4, 1, name="conv", **(conv_options or {"use_bias": not norm}))(x)
    if norm:
        y = keras.layers.BatchNormalization(name="bn")(y)
    if relu is not None:
        y = relu(y)
    for layer in between:
        y = layer(y)
    y = keras.layers.DepthwiseConv2D(3, depth_multiplier=multiplier, name="depthwise")(y)
    if alone:
        y = keras.layers.Activation("tanh")(y)
    y = keras.layers.GlobalAveragePooling2D(name="pool")(y)
    model = keras.Model(x, keras.layers.Dense(3, name="logits")(y), name="net")
    if norm:
        model.get_layer("bn").gamma.assign(RANGES)
        model.get_layer("bn").beta.assign(RANGES / 2)
    return model


def seen_ranges(model, layer, data):
    probe = keras.Model(model.inputs, model.get_layer(layer).output)
    return np.abs(probe.predict(data, verbose=0)).max(axis=(0, 1, 2))


RELUS = {
    "relu": lambda: keras.layers.ReLU(name="relu"),
    "relu6": lambda: keras.layers.ReLU(6.0, name="relu"),
    "low cap": lambda: keras.layers.ReLU(0.05, name="relu"),
    "activation": lambda: keras.layers.Activation("relu", name="relu"),
    "slope": lambda: keras.layers.ReLU(negative_slope=0.1, name="relu"),
    "leaky": lambda: keras.layers.LeakyReLU(0.1, name="relu"),
    "prelu": lambda: keras.layers.PReLU("uniform", shared_axes=(1, 2), name="relu"),
}


@pytest.mark.matrix_except("1-prelu", "2-relu6")
@pytest.mark.parametrize("relu", RELUS)
@pytest.mark.parametrize("multiplier", [1, 2])
def test_equalize_changes_no_output(relu, multiplier):
    model, data, other = network(RELUS[relu](), multiplier=multiplier), images(), images(seed=1)
    equal = equalize(model, data)
    expected = model.predict(10 * other, verbose=0)
    np.testing.assert_allclose(equal.predict(10 * other, verbose=0), expected, rtol=2e-5, atol=2e-6)
    ranges = seen_ranges(equal, "relu", data)
    np.testing.assert_allclose(ranges, ranges.max(), rtol=1e-4)
    assert seen_ranges(model, "relu", data).min() < 0.9 * ranges.max()


def test_equalize_leaves_the_model_alone():
    model, data = network(RELUS["relu6"]()), images()
    before = model.get_weights()
    equalize(model, data)
    for weights, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weights, kept)


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        (network(norm=False), "conv"),
        (network(RELUS["relu"](), norm=False), "relu"),
        (network(norm=False, conv_options={"activation": "relu"}), "conv"),
        (network(RELUS["relu"](), between=[keras.layers.ZeroPadding2D(1)]), "relu"),
        (network(RELUS["relu"](), between=[keras.layers.MaxPooling2D(2)]), "relu"),
        (network(RELUS["relu"](), between=[keras.layers.Dropout(0.5)]), "relu"),
        (network(), "bn"),
    ],
)
def test_equalize_knows_the_layers_around(model, tensor):
    data = images()
    equal = equalize(model, data)
    expected = model.predict(data, verbose=0)
    np.testing.assert_allclose(equal.predict(data, verbose=0), expected, rtol=2e-5, atol=2e-6)
    ranges = seen_ranges(equal, tensor, data)
    np.testing.assert_allclose(ranges, ranges.max(), rtol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        network(keras.layers.Activation("relu6", name="relu"), alone=True),
        network(keras.layers.Activation("silu", name="relu"), alone=True),
        network(keras.layers.ReLU(6.0, negative_slope=0.1, name="relu"), alone=True),
        network(keras.layers.ReLU(threshold=0.1, name="relu"), alone=True),
        network(RELUS["relu"](), between=[keras.layers.Activation("tanh")], alone=True),
        network(RELUS["relu"](), norm=False, conv_options={"activation": "tanh"}, alone=True),
    ],
)
def test_equalize_leaves_other_functions_alone(model):
    equal = equalize(model, images())
    for weights, kept in zip(equal.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, kept)


def test_equalize_leaves_tensor_with_two_readers_alone():
    x = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(3, 1, name="conv")(x)
    model = keras.Model(x, keras.layers.Add()([y, keras.layers.DepthwiseConv2D(1)(y)]))
    equal = equalize(model, images())
    for weights, kept in zip(equal.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, kept)


def test_equalize_bounds_the_scale_of_quiet_channels():
    model = network(RELUS["relu"]())
    model.get_layer("bn").gamma.assign([1.0, 1.0, 1e-6, 0.0])
    model.get_layer("bn").beta.assign([0.0, 0.0, 0.0, 0.0])
    equal = equalize(model, images())
    factors = equal.get_layer("bn").gamma.numpy()[:3] / [1.0, 1.0, 1e-6]
    assert factors.max() == pytest.approx(2**10, rel=1e-5)
    np.testing.assert_array_equal(
        equal.get_layer("depthwise").kernel[:, :, 3], model.get_layer("depthwise").kernel[:, :, 3]
    )


def test_equalize_scales_the_bounds_of_relu6():
    model, data = network(RELUS["relu6"]()), images()
    relu = equalize(model, data).get_layer("relu")
    assert isinstance(relu, ChannelReLU)
    top = seen_ranges(model, "relu", data).max()
    np.testing.assert_allclose(relu.bounds, 6 * top / seen_ranges(model, "relu", data), rtol=1e-4)


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_equalize_exports_without_bounds(tmp_path, target):
    model, data = network(RELUS["relu6"]()), images()
    equal = equalize(model, data)
    quantized = qat_lib.quantize_model(
        equal, custom_qdq_cases="auto", unsigned=target == "openvino"
    )
    qat_lib.calibrate(quantized, data)
    report = qat_lib.export_onnx(quantized, tmp_path / "net.onnx", target=target)
    assert report.findings == ()
    operators = {node.op_type for node in _nodes(tmp_path / "net.onnx")}
    assert "Min" not in operators
    assert qat_lib.check_parity(quantized, tmp_path / "net.onnx", data).passed


def _nodes(path):
    import onnx

    return onnx.load(path).graph.node


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_calibrate_ends_ranges_at_scaled_bounds(tmp_path, target):
    """Also where the data goes beyond what equalization saw."""
    model, data = network(RELUS["relu6"]()), images()
    quantized = qat_lib.quantize_model(equalize(model, data / 5), unsigned=target == "openvino")
    qat_lib.calibrate(quantized, 5 * data, "max")
    amax = float(qat_lib.model_quantizers(quantized)["relu_quantizer"].amax)
    assert amax == np.float32(min(quantized.get_layer("relu").bounds))
    qat_lib.export_onnx(quantized, tmp_path / "net.onnx", target=target)
    assert "Min" not in {node.op_type for node in _nodes(tmp_path / "net.onnx")}


def test_equalize_bounds_a_pooled_relu6():
    x = keras.Input((8, 8, 3))
    keras.utils.set_random_seed(3)
    y = keras.layers.Conv2D(4, 3, name="conv")(x)
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU(6.0, name="relu")(y))
    model = keras.Model(x, keras.layers.Dense(3)(y))
    kernel = model.get_layer("conv").kernel
    kernel.assign(kernel.numpy() * np.float32([4, 1, 0.3, 0.1]))
    data = images()
    equal = equalize(model, data)
    bounds = equal.get_layer("relu").bounds
    assert min(bounds) >= 0.999 * seen_ranges(equal, "relu", data).max()


def test_equalize_lowers_the_error_of_int8():
    model, data, other = network(RELUS["relu6"]()), images(), images(seed=1)
    depthwise = model.get_layer("depthwise")
    depthwise.kernel.assign(depthwise.kernel.numpy() / RANGES[:, None])  # each channel counts

    def error(source):
        quantized = qat_lib.quantize_model(source)
        qat_lib.calibrate(quantized, data, "max")
        return np.abs(quantized.predict(other, verbose=0) - model.predict(other, verbose=0)).mean()

    assert error(equalize(model, data)) < 0.7 * error(model)


def test_equalize_plans_as_before():
    model = network(RELUS["relu6"]())
    equal = equalize(model, images())
    before = qat_lib.plan_quantization(model, custom_qdq_cases="auto")
    after = qat_lib.plan_quantization(equal, custom_qdq_cases="auto")
    assert after.quantizers == before.quantizers
    assert [c.layer for c in LayerGraph(equal).calls] == [c.layer for c in LayerGraph(model).calls]


def test_equalize_refuses_no_data():
    with pytest.raises(CalibrationError, match="empty"):
        equalize(network(), [])


def test_equalize_refuses_a_quantized_model():
    quantized = qat_lib.quantize_model(network(RELUS["relu6"]()))
    with pytest.raises(UnsupportedModelError, match="before quantize_model"):
        equalize(quantized, images())


def test_equalize_takes_a_model_in_half_precision():
    keras.config.set_dtype_policy("float16")
    try:
        model = network(RELUS["relu"]())
    finally:
        keras.config.set_dtype_policy("float32")
    equal = equalize(model, images().astype("float16"))
    assert equal.get_layer("bn").gamma.dtype == "float16"
    ranges = seen_ranges(equal, "relu", images().astype("float16")).astype("float32")
    np.testing.assert_allclose(ranges, ranges.max(), rtol=0.02)


def residual_network():
    """Return a network with channels of different ranges along its shortcuts."""
    keras.utils.set_random_seed(5)
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.Conv2D(6, 1, name="stem")(x)
    for index in range(2):
        z = keras.layers.Conv2D(12, 3, padding="same", name=f"expand_{index}")(y)
        z = keras.layers.ReLU(6.0, name=f"relu_{index}")(z)
        z = keras.layers.Conv2D(6, 1, name=f"project_{index}")(z)
        y = keras.layers.Add(name=f"add_{index}")([y, z])
    model = keras.Model(x, keras.layers.Conv2D(3, 1, name="out")(y), name="residual")
    spread = np.float32([20, 5, 1, 0.5, 0.1, 0.05])
    for name in ("stem", "project_0", "project_1"):
        kernel = model.get_layer(name).kernel
        kernel.assign(kernel.numpy() * spread)
    for name in ("expand_0", "expand_1", "out"):
        kernel = model.get_layer(name).kernel
        kernel.assign(kernel.numpy() / spread[:, None])
    return model


def test_equalize_follows_shortcuts():
    model, data, other = residual_network(), images(), images(seed=1)
    equal = equalize(model, data)
    expected = model.predict(10 * other, verbose=0)
    np.testing.assert_allclose(equal.predict(10 * other, verbose=0), expected, rtol=2e-5, atol=2e-5)
    ranges = seen_ranges(equal, "add_1", data)
    before = seen_ranges(model, "add_1", data)
    assert ranges.max() / ranges.min() < 0.2 * before.max() / before.min()


@pytest.mark.matrix
def test_equalize_lowers_the_error_along_shortcuts():
    model, data, other = residual_network(), images(), images(seed=1)
    expected = model.predict(other, verbose=0)

    def error(source):
        quantized = qat_lib.quantize_model(source, custom_qdq_cases="auto")
        qat_lib.calibrate(quantized, data, "max")
        return np.square(quantized.predict(other, verbose=0) - expected).mean()

    assert error(equalize(model, data)) < 0.5 * error(model)


@pytest.mark.parametrize("target", ["tensorrt", "openvino"])
def test_equalize_exports_shortcuts_without_bounds(tmp_path, target):
    model, data = residual_network(), images()
    quantized = qat_lib.quantize_model(
        equalize(model, data), custom_qdq_cases="auto", unsigned=target == "openvino"
    )
    qat_lib.calibrate(quantized, data)
    qat_lib.export_onnx(quantized, tmp_path / "net.onnx", target=target)
    assert "Min" not in {node.op_type for node in _nodes(tmp_path / "net.onnx")}
    assert qat_lib.check_parity(quantized, tmp_path / "net.onnx", data).passed
