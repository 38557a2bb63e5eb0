"""Single layers of many kinds: converted, verified, compared with Keras."""

import numpy as np
import onnx
import pytest

import qat_lib

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
L = keras.layers

IMAGE = (8, 8, 4)


def spectrogram(x, window):
    real, imaginary = keras.ops.stft(x, window, 8, window)
    return keras.ops.concatenate([real, imaginary], axis=-1)


NETWORKS = {
    "embedding": ((5,), lambda x: L.GlobalAveragePooling1D()(L.Embedding(10, 4)(x)), "int32"),
    "lstm": ((5, 4), lambda x: L.LSTM(3)(x), "float32"),
    "attention": (
        (6, 8),
        lambda x: L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x)),
        "float32",
    ),
    "spectrogram": ((128,), lambda x: spectrogram(x, 16), "float32"),
    "spectrogram of odd windows": ((128,), lambda x: spectrogram(x, 15), "float32"),
    "absolute spectrogram": (
        (128,),
        lambda x: L.Lambda(lambda t: tf.abs(tf.signal.stft(t, 16, 8)))(x),
        "float32",
    ),
    "conv1d": (
        (16, 4),
        lambda x: L.BatchNormalization()(L.Conv1D(6, 3, dilation_rate=2)(x)),
        "float32",
    ),
    "conv3d": (
        (6, 6, 6, 2),
        lambda x: L.MaxPooling3D(2)(L.BatchNormalization()(L.Conv3D(3, 3)(x))),
        "float32",
    ),
    "resizing": (
        IMAGE,
        lambda x: L.Resizing(5, 5)(L.UpSampling2D(2, interpolation="bilinear")(x)),
        "float32",
    ),
    "transposed": (
        IMAGE,
        lambda x: L.Conv2DTranspose(4, 3, strides=2, padding="same")(x),
        "float32",
    ),
    "prelu": (
        IMAGE,
        lambda x: L.PReLU(shared_axes=[1, 2])(L.Conv2D(4, 3, dilation_rate=2)(x)),
        "float32",
    ),
    "operations": (
        IMAGE,
        lambda x: keras.ops.mean(keras.ops.transpose(x * 2 + 1, (0, 3, 1, 2)), axis=(2, 3)),
        "float32",
    ),
    "group norm": (IMAGE, lambda x: L.GroupNormalization(2)(L.Conv2D(4, 3)(x)), "float32"),
    "two norms": (
        IMAGE,
        lambda x: L.BatchNormalization()(L.BatchNormalization()(L.Conv2D(4, 3)(x))),
        "float32",
    ),
    "softmax of pixels": (
        IMAGE,
        lambda x: L.Softmax()(L.Conv2D(4, 1)(L.Concatenate()([x, x]))),
        "float32",
    ),
    "the input itself": ((4,), lambda x: x, "float32"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_agree_with_keras(name, tmp_path):
    shape, build, dtype = NETWORKS[name]
    keras.utils.set_random_seed(1)
    x = keras.Input(shape, dtype=dtype, name="x")
    model = keras.Model(x, build(x))
    path = tmp_path / "layer.onnx"
    qat_lib.export_onnx(model, path)
    rng = np.random.default_rng(2)
    data = rng.integers(0, 10, (3, *shape)) if dtype == "int32" else rng.normal(size=(3, *shape))
    report = qat_lib.check_parity(model, path, data.astype(dtype))
    assert report.passed, report
    assert [value.name for value in onnx.load(path).graph.input] == ["x"]


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_a_gate_leaves_no_shape_arithmetic(opset, tmp_path):
    x = keras.Input(IMAGE)
    y = L.Conv2D(8, 3)(L.ZeroPadding2D(1)(x))
    gate = L.Activation("hard_sigmoid")(L.Reshape((1, 1, 8))(L.GlobalAveragePooling2D()(y)))
    y = L.Flatten()(L.Multiply()([y, gate]))
    model = keras.Model(x, L.Dense(3)(y))
    path = tmp_path / "gate.onnx"
    qat_lib.export_onnx(model, path, opset=opset)
    found = [node.op_type for node in onnx.load(path).graph.node]
    assert not {"Shape", "Gather", "Slice", "Concat", "Pad"} & set(found)
    assert found.count("Transpose") == found.count("Reshape") == 1
    assert qat_lib.check_parity(
        model, path, np.random.default_rng(0).normal(size=(3, *IMAGE)).astype("f4")
    ).passed


def test_an_open_image_size_stays_open(tmp_path):
    x = keras.Input((None, None, 3), name="x")
    model = keras.Model(x, L.GlobalAveragePooling2D()(L.Conv2D(3, 3, padding="same", strides=2)(x)))
    path = tmp_path / "open.onnx"
    qat_lib.export_onnx(model, path)
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dims] == ["batch", "x_dim_1", "x_dim_2", 3]
    for side in (7, 12):
        data = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
        assert qat_lib.check_parity(model, path, data).passed


def test_resized_integers_are_compared_as_predict_computes_them(tmp_path):
    # Keras rounds them if called eagerly.
    x = keras.Input((None, None, 3), dtype="uint8")
    model = keras.Model(x, L.Rescaling(1 / 127.5, -1)(L.Resizing(5, 5)(x)))
    path = tmp_path / "resized.onnx"
    assert qat_lib.export_onnx(model, path).findings == ()
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), np.uint8)
    assert qat_lib.check_parity(model, path, images).passed


def test_ranges_that_nobody_set_are_named(tmp_path, caplog):
    x = keras.Input(IMAGE)
    model = qat_lib.quantize_model(keras.Model(x, L.Conv2D(4, 3, name="conv")(x)))
    qat_lib.export_onnx(model, tmp_path / "model.onnx")
    assert "1 of 2 quantizers were never calibrated" in caplog.text
    caplog.clear()
    qat_lib.calibrate(model, np.random.default_rng(0).normal(size=(4, *IMAGE)).astype(np.float32))
    qat_lib.export_onnx(model, tmp_path / "model.onnx")
    assert "calibrated" not in caplog.text


@pytest.mark.matrix_except("1-layer0-False", "padding2-layer2-True")
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(
    ("padding", "layer"),
    [
        (1, L.Conv2D(6, 3, dilation_rate=2, padding="same")),
        (2, L.Conv2D(6, 3, dilation_rate=2, padding="same")),
        (((0, 1), (2, 3)), L.Conv2D(6, 5, dilation_rate=2, padding="same")),
        (3, L.Conv2D(6, 3, dilation_rate=(1, 3), padding="valid")),
        (2, L.DepthwiseConv2D(3, dilation_rate=2, padding="same")),
        (1, L.SeparableConv2D(6, 3, dilation_rate=2, padding="same")),
    ],
)
def test_padding_adds_to_that_of_dilated_convolution(padding, layer, quantized, tmp_path):
    keras.utils.set_random_seed(0)
    layer = type(layer).from_config({**layer.get_config(), "bias_initializer": "normal"})
    x = keras.Input(IMAGE)
    model = keras.Model(x, layer(L.ZeroPadding2D(padding)(x)))
    data = np.random.default_rng(0).normal(size=(4, *IMAGE)).astype(np.float32)
    if quantized:
        model = qat_lib.quantize_model(model)
        qat_lib.calibrate(model, data)
    path = tmp_path / "padded.onnx"
    qat_lib.export_onnx(model, path)
    report = qat_lib.check_parity(model, path, data)
    assert report.largest_difference <= 1e-5 * report.magnitude
    assert "Pad" not in [node.op_type for node in onnx.load(path).graph.node]
