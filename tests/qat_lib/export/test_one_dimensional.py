"""One-dimensional networks: their convolutions are images of height 1, without transposes between them."""

from collections import Counter

import numpy as np
import onnx
import pytest

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
    lowered = lab.check(model, lambda m: passes.merge_bias(passes.remove_thin_reshapes(m)), x, atol=1e-6)
    assert lab.order(lowered) == ["Conv", "Squeeze", "Relu"]


def test_a_constant_that_makes_the_tensor_larger_stays_behind_the_squeeze(lab, rng):
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
    assert lab.order(lab.check(model, passes.remove_thin_reshapes, x)) == lab.order(model)


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
