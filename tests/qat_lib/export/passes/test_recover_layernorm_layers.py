"""Layer normalization comes together from its pieces."""

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.export import passes

keras = pytest.importorskip("keras")
L = keras.layers

U = 2.0**-24


def pieces(
    reduce,
    *,
    axes,
    gamma="inv1 = Mul(inv, gamma)",
    beta="res = Add(shift, beta)",
    variance="square",
):
    """Return the text of a LayerNormalization as Keras and tf2onnx write it."""
    return f"""(float[b,5,6] x) => (float[b,5,6] y) {{
        mean = {reduce("x", axes)}
        centered = Sub(x, mean)
        square = Mul(centered, centered)
        variance = {reduce(variance, axes)}
        padded = Add(variance, epsilon)
        root = Sqrt(padded)
        inv = Reciprocal(root)
        {gamma}
        scaled = Mul(x, inv1)
        minus = Neg(mean)
        shift = Mul(minus, inv1)
        {beta}
        y = Add(scaled, res) }}"""


def by_attribute(value, axes):
    return f"ReduceMean<axes = {axes}, keepdims = 1>({value})"


def by_input(value, axes):
    return f"ReduceMean<keepdims = 1>({value}, axes)"


def constants(rng, *shape):
    return {
        "epsilon": np.float32(1e-3),
        "gamma": rng.normal(size=shape).astype(np.float32),
        "beta": rng.normal(size=shape).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("axes", "shape", "opset"),
    [([-1], (6,), 17), ([2], (1, 1, 6), 18), ([1, 2], (1, 5, 6), 17), ([-1], (6,), 21)],
)
def test_the_pieces_become_one_node(lab, rng, axes, shape, opset):
    reduce = by_attribute if opset < 18 else by_input
    more = {} if opset < 18 else {"axes": np.asarray(axes, np.int64)}
    given = constants(rng, *shape)
    model = lab.build(pieces(reduce, axes=axes), opset=opset, **given, **more)
    x = (rng.normal(size=(2, 5, 6)) + 4).astype(np.float32)
    spread = tuple(range(3 - len(axes), 3))
    inverse = 1 / np.sqrt(x.var(axis=spread, keepdims=True) + 1e-3)
    magnitude = (
        (np.abs(x) + np.abs(x.mean(axis=spread, keepdims=True))) * inverse * np.abs(given["gamma"])
    )
    # The bound of the module's text, and as much again for the rounding of mean and variance.
    bound = 8 * U * float((magnitude + np.abs(given["beta"])).max())
    lowered = lab.check(model, passes.recover_layernorm, {"x": x}, atol=bound)
    assert lab.order(lowered) == ["LayerNormalization"]


def test_without_gamma_and_beta(lab, rng):
    text = (
        pieces(by_attribute, axes=[2], gamma="", beta="")
        .replace("inv1", "inv")
        .replace("scaled, res", "scaled, shift")
    )
    model = lab.build(text, epsilon=np.float32(1e-6))
    x = rng.normal(size=(2, 5, 6)).astype(np.float32)
    assert lab.order(lab.check(model, passes.recover_layernorm, {"x": x}, atol=3e-6)) == [
        "LayerNormalization"
    ]


@pytest.mark.parametrize(
    ("change", "opset"),
    [
        ({"axes": [1]}, 17),  # not the last axis
        ({"axes": [2]}, 16),  # no such operator yet
        ({"axes": [2], "variance": "centered"}, 17),  # no variance
        ({"axes": [2], "beta": "res = Add(shift, x)"}, 17),  # no constant
    ],
    ids=["channels first", "opset", "variance", "offset"],
)
def test_what_is_nearly_one_stays(lab, rng, change, opset):
    shape = (5, 1) if change["axes"] == [1] else (6,)
    model = lab.build(pieces(by_attribute, **change), opset=opset, **constants(rng, *shape))
    x = rng.uniform(1, 2, (2, 5, 6)).astype(np.float32)
    lowered = lab.check(model, passes.recover_layernorm, {"x": x})
    assert "LayerNormalization" not in lab.ops(lowered)


def transformer():
    x = inputs = keras.Input((12, 16))
    y = L.LayerNormalization(epsilon=1e-6)(x)
    x = L.Add()([x, L.MultiHeadAttention(2, 8)(y, y)])
    y = L.Dense(16)(L.Dense(32, activation="gelu")(L.LayerNormalization()(x)))
    x = L.LayerNormalization(center=False)(L.Add()([x, y]))
    x = L.EinsumDense("abc,cd->abd", output_shape=(None, 8), bias_axes="d")(x)
    return keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling1D()(x)))


@pytest.fixture(scope="module")
def attention():
    keras.utils.set_random_seed(3)
    model = transformer()
    data = np.random.default_rng(3).normal(size=(12, 12, 16)).astype(np.float32)
    plan = qat_lib.plan_quantization(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    quantized = qat_lib.apply_plan(model, plan)
    qat_lib.calibrate(quantized, data, method="max")
    return quantized, plan, data


@pytest.mark.matrix_except("more0-13", "more1-21")
@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize(
    "more", [{}, {"weights": "qdq"}, {"target": "onnxruntime"}, {"target": "openvino"}]
)
def test_an_attention_network_agrees_with_keras(attention, tmp_path, opset, more):
    quantized, plan, data = attention
    report = qat_lib.export_onnx(
        quantized, tmp_path / "attention.onnx", plan=plan, opset=opset, **more
    )
    assert report.findings == ()
    parity = qat_lib.check_parity(quantized, report.path, data, layers=True)
    assert parity.passed, parity
    assert parity.largest_difference < 1e-4 * parity.magnitude or parity.ties
    ops = [node.op_type for node in onnx.load(report.path).graph.node]
    assert ops.count("LayerNormalization") == (0 if opset < 17 else 3)
    if more.get("target") != "openvino":
        assert [f for f in qat_lib.analyze_onnx(report.path).findings if f.severity != "info"] == []


@pytest.mark.matrix_except("int8")
@pytest.mark.parametrize("weights", ["int8", "qdq"])
def test_an_attention_network_in_half(attention, tmp_path, weights):
    quantized, plan, data = attention
    path = tmp_path / "half.onnx"
    qat_lib.export_onnx(quantized, path, plan=plan, float_precision="fp16", weights=weights)
    parity = qat_lib.check_parity(quantized, path, data)
    assert parity.passed, parity
    assert [f for f in qat_lib.analyze_onnx(path).findings if f.severity != "info"] == []
