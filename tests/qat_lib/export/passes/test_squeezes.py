"""The Squeeze behind a one-dimensional convolution moves below its readers."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from graph_text import assert_same, build, check_rewrite, floats, ints

import qat_lib
from qat_lib.export import finish
from qat_lib.export.options import PASSES
from qat_lib.export.passes import sink_squeezes

SEQUENCE = "(float[2,3,1,8] x) => (float y)"
CONV = "c = Conv<kernel_shape = [1,1]>(x, k)\n"
BIAS = {
    "k": floats(4, 3, 1, 1),
    "axis": ints(2),
    "behind": ints(-2),
    "both": ints(0, 2),
    "bias": floats(4, 1),
    "spread": floats(1, 4, 1, 1),
    "scale": floats(8),
    "spread_scale": floats(1, 1, 1, 8),
    "row": floats(2, 4, 8),
    "spread_row": floats(2, 4, 1, 8),
}
SPREAD = {
    "a bias": ("Add(s, bias)", "Add(c, spread)"),
    "a bias in front": ("Sub(bias, s)", "Sub(spread, c)"),
    "a constant of one axis": ("Div(s, scale)", "Div(c, spread_scale)"),
    "a constant of all axes": ("Mul(s, row)", "Mul(c, spread_row)"),
}


@pytest.mark.parametrize("axis", ["axis", "behind"])
@pytest.mark.parametrize("case", SPREAD)
def test_constant_behind_squeeze_is_spread(lab, case, axis):
    before, after = SPREAD[case]
    check_rewrite(
        lab,
        sink_squeezes,
        SEQUENCE,
        CONV + f"s = Squeeze(c, {axis})\n a = {before}\n y = Exp(a)",
        CONV + f"a = {after}\n s = Squeeze(a, axis)\n y = Exp(s)",
        tolerance=1e-5,
        **BIAS,
    )


PAIR = "{1} = QuantizeLinear({0}, scale, zero)\n {2} = DequantizeLinear({1}, scale, zero)\n"
BRANCH = CONV + "s = Squeeze(c, axis)\n"
TWO = BRANCH + "d = Conv<kernel_shape = [1,1]>(x, l)\n t = Squeeze(d, axis)\n"
WIDE = CONV + "d = Conv<kernel_shape = [1,1]>(x, l)\n"
SUNK = {
    "a residual": (
        TWO + "a = Add(s, t)\n y = Exp(a)",
        WIDE + "a = Add(c, d)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "a residual behind ReLU and quantizer": (
        TWO + "r = Relu(t)\n" + PAIR.format("r", "q", "p") + "a = Add(s, p)\n y = Exp(a)",
        WIDE
        + "r = Relu(d)\n"
        + PAIR.format("r", "q", "p")
        + "a = Add(c, p)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "another tensor": (
        BRANCH + "a = Add(z, s)\n y = Exp(a)",
        CONV + "u = Unsqueeze(z, axis)\n a = Add(u, c)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "another tensor behind the bias": (
        BRANCH + "b = Add(s, bias)\n a = Add(b, z)\n y = Exp(a)",
        CONV
        + "b = Add(c, spread)\n u = Unsqueeze(z, axis)\n a = Add(b, u)\n s = Squeeze(a, axis)\n"
        + "y = Exp(s)",
    ),
    "a gate": (
        TWO + "a = Tanh(s)\n b = Sigmoid(t)\n g = Mul(a, b)\n y = Exp(g)",
        WIDE + "a = Tanh(c)\n b = Sigmoid(d)\n g = Mul(a, b)\n s = Squeeze(g, axis)\n y = Exp(s)",
    ),
    "padding": (
        BRANCH + "a = Pad(s, pads)\n y = Exp(a)",
        CONV + "a = Pad(c, wide_pads)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "channels side by side": (
        TWO + "a = Concat<axis = 1>(s, t)\n y = Exp(a)",
        WIDE + "a = Concat<axis = 1>(c, d)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "lengths side by side": (
        TWO + "a = Concat<axis = -1>(s, t)\n y = Exp(a)",
        WIDE + "a = Concat<axis = 3>(c, d)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "a pool": (
        "c = MaxPool<kernel_shape = [1,2]>(x)\n s = Squeeze(c, axis)\n a = Relu(s)\n y = Exp(a)",
        "c = MaxPool<kernel_shape = [1,2]>(x)\n a = Relu(c)\n s = Squeeze(a, axis)\n y = Exp(s)",
    ),
    "one of two readers": (
        BRANCH + "a = Relu(s)\n b = Exp(s)\n y = Mul(a, b)",
        BRANCH + "a = Relu(c)\n t = Squeeze(a, axis)\n b = Exp(s)\n y = Mul(t, b)",
    ),
}
SUNK_CONSTANTS = {
    **BIAS,
    "l": floats(4, 3, 1, 1) - 3,
    "scale": np.float32(0.5),
    "zero": np.int8(0),
    "scales": np.float32([0.5, 0.25, 1, 2]),
    "zeros": np.zeros(4, np.int8),
    "pads": ints(0, 0, 3, 0, 0, 1),
    "wide_pads": ints(0, 0, 0, 3, 0, 0, 0, 1),
    "short_pads": ints(3, 1),
    "last": ints(-1),
    "first": ints(0),
}
RESIDUAL = "(float[2,3,1,8] x, float[2,4,8] z) => (float y)"


@pytest.mark.parametrize("case", SUNK)
def test_squeeze_sinks_bit_for_bit(lab, case):
    before, after = SUNK[case]
    signature = RESIDUAL if "z" in before else SEQUENCE
    check_rewrite(lab, sink_squeezes, signature, before, after, tolerance=0, **SUNK_CONSTANTS)


NOT_SUNK = {
    "channels of their own scale": BRANCH
    + "q = QuantizeLinear<axis = 1>(s, scales, zeros)\n"
    + "p = DequantizeLinear<axis = 1>(q, scales, zeros)\n y = Exp(p)",
    "padded axes": BRANCH + "a = Pad(s, short_pads, , last)\n y = Exp(a)",
    "another tensor beside": BRANCH + "a = Concat<axis = 1>(s, z)\n y = Exp(a)",
    "a tensor that broadcasts": BRANCH
    + "m = ReduceMax<axes = [2]>(z)\n a = Add(s, m)\n y = Exp(a)",
    "another tensor without a fusion": CONV
    + "r = Relu(c)\n s = Squeeze(r, axis)\n a = Add(s, z)\n y = Exp(a)",
    "another operator": BRANCH + "a = Softmax<axis = 1>(s)\n y = Exp(a)",
}


@pytest.mark.parametrize("case", NOT_SUNK)
def test_squeeze_stays(lab, case):
    text = NOT_SUNK[case]
    opset = 18 if "short_pads" in text else 17
    signature = RESIDUAL if "z)" in text else SEQUENCE
    check_rewrite(lab, sink_squeezes, signature, text, opset=opset, **SUNK_CONSTANTS)


def test_squeezes_of_other_axes_stay(lab):
    text = """(float[1,1,1,1] x) => (float y) {
        c = Conv<kernel_shape = [1,1]>(x, one)
        s = Squeeze(c, axis)
        t = Squeeze(c, first)
        a = Add(s, t)
        y = Exp(a) }"""
    model = build(lab, text, {**SUNK_CONSTANTS, "one": floats(1, 1, 1, 1)})
    assert_same(sink_squeezes(model), model)


def wavenet():
    """Return a small WaveNet: dilated gates, residuals and skips."""
    keras = pytest.importorskip("keras")
    layers = keras.layers
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 4), name="x")
    x = layers.Conv1D(8, 2, padding="causal")(inputs)
    for rate in (1, 2, 4):
        options = {"padding": "causal", "dilation_rate": rate}
        gates = [layers.Conv1D(8, 2, activation=name, **options)(x) for name in ("tanh", "sigmoid")]
        gated = layers.Multiply()(gates)
        x = layers.Add(name=f"residual{rate}")([x, layers.Conv1D(8, 1)(gated)])
    return keras.Model(inputs, layers.Conv1D(2, 1, name="y")(layers.ReLU()(x)))


@pytest.mark.matrix
def test_residuals_of_wavenet_fuse(tmp_path, monkeypatch):
    model, path = qat_lib.quantize_model(wavenet(), custom_qdq_cases="auto"), tmp_path / "m.onnx"
    data = np.random.default_rng(0).normal(size=(4, 32, 4)).astype(np.float32)
    qat_lib.calibrate(model, data)

    def answers():
        qat_lib.export_onnx(model, path)
        return onnxruntime.InferenceSession(path).run(None, {"x": data})[0]

    received = answers()
    report = qat_lib.analyze_onnx(path)
    assert [verdict.rule for verdict in report.adds] == ["F1"] * 3
    operators = Counter(node.op_type for node in onnx.load(path).graph.node)
    # The input and the output of the network alone have three axes.
    assert operators["Unsqueeze"] == operators["Squeeze"] == operators["Pad"] == 1

    kept = [each for each in PASSES if each.function != "sink_squeezes"]
    monkeypatch.setattr(finish, "PASSES", kept)
    np.testing.assert_array_equal(received, answers())
    assert qat_lib.analyze_onnx(path).summary()["fused_adds"] == 0


def test_constants_behind_a_convolution_are_spread_one_after_another(lab):
    check_rewrite(
        lab,
        sink_squeezes,
        SEQUENCE,
        CONV + "s = Squeeze(c, axis)\n a = Mul(bias, s)\n b = Add(a, row)\n y = Exp(b)",
        CONV + "a = Mul(spread, c)\n b = Add(a, spread_row)\n s = Squeeze(b, axis)\n y = Exp(s)",
        tolerance=1e-5,
        **BIAS,
    )


NOT_SPREAD = {
    "no convolution": "e = Exp(x)\n s = Squeeze(e, axis)\n a = Add(s, one_row)\n y = Exp(a)",
    "two tensors in front": "c = Add(x, x)\n s = Squeeze(c, axis)\n a = Add(s, one_row)\n y = Exp(a)",
    "constants alone": "c = Add(row4, row4)\n s = Squeeze(c, axis)\n a = Add(s, row3)\n y = Add(a, x)",
    "no squeeze": CONV + "s = Reshape(c, target)\n a = Add(s, bias)\n y = Exp(a)",
    "a squeeze of all": CONV + "s = Squeeze(c)\n a = Add(s, bias)\n y = Exp(a)",
    "another operator": CONV + "s = Squeeze(c, axis)\n a = Max(s, bias)\n y = Exp(a)",
    "a computed operand": CONV
    + "s = Squeeze(c, axis)\n e = Exp(bias)\n a = Add(s, e)\n y = Exp(a)",
    "a constant of more axes": CONV + "s = Squeeze(c, axis)\n a = Add(s, cube)\n y = Exp(a)",
    "the sum is the output": CONV + "s = Squeeze(c, axis)\n y = Add(s, bias)",
}


@pytest.mark.parametrize("case", NOT_SPREAD)
def test_other_constants_stay_behind_the_squeeze(lab, case):
    constants = {
        **BIAS,
        "one_row": floats(3, 1),
        "target": ints(2, 4, 8),
        "cube": floats(1, 2, 4, 8),
    }
    constants |= {"row4": floats(1, 3, 1, 8), "row3": floats(3, 1)}
    check_rewrite(lab, sink_squeezes, SEQUENCE, NOT_SPREAD[case], **constants)


@pytest.mark.parametrize("wide", [(4, 1), (4, 8), (2, 4, 1)])
def test_widening_constant_stays_behind_squeeze(lab, wide):
    signature = "(float[1,3,1,1] x) => (float y)"
    text = "c = Conv<kernel_shape = [1,1]>(x, k)\n s = Squeeze(c, axis)\n a = Add(s, bias)\n y = Exp(a)"
    constants = {"k": floats(1, 3, 1, 1), "axis": ints(2), "bias": floats(*wide)}
    check_rewrite(lab, sink_squeezes, signature, text, **constants)


def test_a_squeeze_of_two_axes_is_not_passed(lab):
    text = CONV + "s = Squeeze(c, both)\n a = Add(s, bias)\n y = Exp(a)"
    check_rewrite(lab, sink_squeezes, SEQUENCE.replace("2,3", "1,3"), text, **BIAS)


def test_a_squeeze_of_unknown_shape_is_not_passed(lab):
    model = build(
        lab, f"{SEQUENCE} {{ {CONV} s = Squeeze(c, axis)\n a = Add(s, bias)\n y = Exp(a) }}", BIAS
    )
    lab.node(model, "Squeeze").outputs[0].shape = lab.node(model, "Add").outputs[0].shape = None
    assert_same(sink_squeezes(model), model)
