"""One-dimensional networks: convolutions of height 1 without transposes between them."""

from collections import Counter

import numpy as np
import onnx
import pytest
from tensorflow_kernels import require_kernels

import qat_lib
from qat_lib.export import passes
from qat_lib.export.passes.layout_axes import squeeze_above, unsqueeze_above

keras = pytest.importorskip("keras")
L = keras.layers


@pytest.mark.parametrize("perm", [[0, 2, 1], [2, 0, 1], [0, 1, 2], [1, 2, 0]])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_an_axis_added_in_front_of_a_transpose(perm, axis):
    x = np.arange(24).reshape(2, 3, 4)
    added, left = unsqueeze_above(perm, axis)
    want = np.expand_dims(x.transpose(perm), axis)
    np.testing.assert_array_equal(np.expand_dims(x, added).transpose(left), want)
    dropped, rest = squeeze_above(left, axis)
    assert (dropped, rest) == (added, perm)


def test_a_bias_behind_a_squeeze_joins_its_convolution(lab, rng):
    text = """(float[b,3,1,8] x) => (float[b,4,8] y) {
        c = Conv<kernel_shape = [1, 1]>(x, w)
        s = Squeeze(c, axis)
        a = Add(s, bias)
        y = Relu(a) }"""
    constants = {
        "w": rng.normal(size=(4, 3, 1, 1)).astype(np.float32),
        "axis": np.array([2]),
        "bias": rng.normal(size=(4, 1)).astype(np.float32),
    }
    x = {"x": rng.normal(size=(2, 3, 1, 8)).astype(np.float32)}
    model = lab.build(text, **constants)
    lowered = lab.check(model, lambda m: passes.merge_bias(passes.sink_squeezes(m)), x, atol=1e-6)
    assert lab.order(lowered) == ["Conv", "Squeeze", "Relu"]


def test_constant_enlarging_tensor_stays_behind_squeeze(lab, rng):
    text = """(float[1,1,1,8] x) => (float[1,4,8] y) {
        c = Conv<kernel_shape = [1, 1]>(x, w)
        s = Squeeze(c, axis)
        y1 = Add(s, more)
        y = Relu(y1) }"""
    constants = {
        "w": rng.normal(size=(1, 1, 1, 1)).astype(np.float32),
        "axis": np.array([2]),
        "more": rng.normal(size=(4, 1)).astype(np.float32),
    }
    x = {"x": rng.normal(size=(1, 1, 1, 8)).astype(np.float32)}
    model = lab.build(text, **constants)
    assert lab.order(lab.check(model, passes.sink_squeezes, x)) == lab.order(model)


def test_a_network_of_one_dimension(tmp_path):
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(2)
    x = inputs = keras.Input((32, 4))
    for index, strides in enumerate((1, 2)):
        x = L.Conv1D(16, 3, strides=strides, padding="same", use_bias=bool(index))(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    skip = x = L.MaxPooling1D(2)(x)
    x = L.BatchNormalization()(L.Conv1D(16, 3, padding="causal", dilation_rate=2)(x))
    x = L.ReLU()(L.Add()([x, skip]))
    model = keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(x)))
    for layer in model.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.gamma.assign(rng.uniform(0.5, 1.5, 16) * rng.choice([1, -1], 16))
            layer.moving_mean.assign(rng.normal(size=16))
    data = rng.normal(size=(8, 32, 4)).astype(np.float32)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    quantized = qat_lib.apply_plan(model, plan)
    qat_lib.calibrate(quantized, data, method="max")
    path = tmp_path / "one.onnx"
    for network, kept in ((model, None), (quantized, plan)):
        assert qat_lib.export_onnx(network, path, plan=kept).findings == ()
        ops = Counter(node.op_type for node in onnx.load(path).graph.node)
        assert ops["Transpose"] == 1, ops
        assert ops["Mul"] == ops["BatchNormalization"] == 0, ops
        parity = qat_lib.check_parity(network, path, data, layers=True)
        assert parity.passed
        if kept is None:
            assert parity.first_difference() is None
    report = qat_lib.analyze_onnx(path)
    assert [f for f in report.findings if f.severity == "error"] == []
    assert report.int8_layers == len(report.layers) == 4


TRANSPOSED = {
    "same": {"strides": 2, "padding": "same"},
    "valid": {"strides": 2},
    "no stride": {"padding": "same"},
    "dilated": {"dilation_rate": 2},
    "longer by one": {"strides": 2, "padding": "same", "output_padding": 1},
    "longer by two": {"strides": 3, "output_padding": 2},
    "kernel below stride": {"kernel_size": 1, "strides": 3, "padding": "same"},
    "kernel below stride, valid": {"kernel_size": 2, "strides": 3},
}


@pytest.mark.matrix_except("same-1", "longer by two-3", "kernel below stride, valid-2")
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("options", TRANSPOSED.values(), ids=list(TRANSPOSED))
def test_a_transposed_convolution_with_an_open_batch(tmp_path, dimensions, options):
    keras.utils.set_random_seed(3)
    layer = getattr(L, f"Conv{dimensions}DTranspose")(
        4, **{"kernel_size": 3, **options}, bias_initializer="normal"
    )
    inputs = keras.Input((*(5, 6, 4)[:dimensions], 3))
    model = keras.Model(inputs, layer(inputs))
    require_kernels(model, np.zeros((1, *inputs.shape[1:]), np.float32))
    path = tmp_path / "transposed.onnx"
    assert qat_lib.export_onnx(model, path).findings == ()
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert ops["ConvTranspose"] == 1
    assert ops.keys() <= {"ConvTranspose", "Transpose", "Unsqueeze", "Squeeze", "Add", "Reshape"}, (
        ops
    )
    for batch in (1, 3):
        data = (
            np.random.default_rng(batch).normal(size=(batch, *inputs.shape[1:])).astype(np.float32)
        )
        assert qat_lib.check_parity(model, path, data).passed


def test_a_transposed_convolution_of_open_length(tmp_path):
    """The twin: what has no size before it runs is computed then."""
    inputs = keras.Input((None, 3))
    model = keras.Model(inputs, L.Conv1DTranspose(4, 3, strides=2, padding="same")(inputs))
    path = tmp_path / "open.onnx"
    assert qat_lib.export_onnx(model, path).findings == ()
    assert "Shape" in {node.op_type for node in onnx.load(path).graph.node}
    for length in (5, 8):
        data = np.random.default_rng(length).normal(size=(2, length, 3)).astype(np.float32)
        assert qat_lib.check_parity(model, path, data).passed


@pytest.mark.parametrize("quantize", [False, True])
def test_an_autoencoder_of_one_dimension(tmp_path, quantize):
    keras.utils.set_random_seed(4)
    x = inputs = keras.Input((32, 2))
    for width in (8, 4):
        x = L.Conv1D(width, 3, strides=2, padding="same", activation="relu")(x)
    for width in (4, 8):
        x = L.Conv1DTranspose(width, 3, strides=2, padding="same", activation="relu")(x)
    model = keras.Model(inputs, L.Conv1D(2, 3, padding="same")(x))
    data = np.random.default_rng(4).normal(size=(3, 32, 2)).astype(np.float32)
    if quantize:
        model = qat_lib.quantize_model(model)
        qat_lib.calibrate(model, data, method="max")
    path = tmp_path / "autoencoder.onnx"
    qat_lib.export_onnx(model, path)
    ops = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert ops["ConvTranspose"] == 2
    assert not ops.keys() & {"Shape", "Slice", "Pad", "Concat", "Add"}, ops
    for batch in (1, 3):
        received = qat_lib.check_parity(model, path, data[:batch])
        assert received.passed
        assert received.largest_difference < 1e-5
