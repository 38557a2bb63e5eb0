"""A PReLU as one node."""

from collections import Counter

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.analysis import analyze_onnx
from qat_lib.export import passes

keras = pytest.importorskip("keras")
L = keras.layers

PIECES = """(float[2,4,4,3] x) => (float[2,4,4,3] y) {
    p = Relu(x)
    n = Neg(x)
    r = Relu(n)
    m = Mul(minus, r)
    y = Add(p, m) }"""


def test_pieces_become_one_prelu(lab, rng):
    minus = rng.normal(size=(1, 1, 3)).astype(np.float32)
    x = {"x": rng.normal(size=(2, 4, 4, 3)).astype(np.float32)}
    for text in (
        PIECES,
        PIECES.replace("Add(p, m)", "Add(m, p)").replace("Mul(minus, r)", "Mul(r, minus)"),
    ):
        lowered = lab.check(lab.build(text, minus=minus), passes.recover_prelu, x)
        assert lab.order(lowered) == ["PRelu"]
        np.testing.assert_array_equal(
            lab.node(lowered, "PRelu").inputs[1].const_value.numpy(), -minus
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Relu(n)", "Abs(n)"),
        ("Neg(x)", "Abs(x)"),
        ("p = Relu(x)", "p = Abs(x)"),
        ("Mul(minus, r)", "Mul(x, r)"),
        ("Add(p, m)", "Sub(p, m)"),
    ],
)
def test_other_sums_stay(lab, rng, old, new):
    model = lab.build(PIECES.replace(old, new), minus=np.ones((1, 1, 3), np.float32))
    lowered = lab.check(
        model, passes.recover_prelu, {"x": rng.normal(size=(2, 4, 4, 3)).astype(np.float32)}
    )
    assert lab.ops(lowered) == lab.ops(model)


def test_slope_that_enlarges_the_tensor_stays(lab, rng):
    text = PIECES.replace("float[2,4,4,3] x", "float[2,1,4,3] x")
    model = lab.build(text, minus=np.ones((4, 1, 3), np.float32))
    lowered = lab.check(
        model, passes.recover_prelu, {"x": rng.normal(size=(2, 1, 4, 3)).astype(np.float32)}
    )
    assert lab.ops(lowered)["PRelu"] == 0


@pytest.mark.parametrize("channels_first", [False, True])
def test_keras_prelu_follows_convolution_layout(channels_first, rng, tmp_path):
    x = keras.Input((8, 8, 3))
    y = L.PReLU(shared_axes=[1, 2], name="per_channel")(L.Conv2D(4, 3)(x))
    skip = L.PReLU(name="per_element")(L.Conv2D(4, 3, padding="same")(y))
    y = L.Add()([L.PReLU(shared_axes=[1], name="per_column")(skip), skip])
    y = L.PReLU(name="flat")(L.Dense(5)(L.Flatten()(y)))
    model = keras.Model(x, L.Dense(2)(y))
    for layer in model.layers:
        if isinstance(layer, L.PReLU):
            layer.alpha.assign(rng.uniform(-0.5, 0.5, layer.alpha.shape))
    model = qat_lib.quantize_model(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    images = rng.normal(size=(4, 8, 8, 3)).astype(np.float32)
    qat_lib.calibrate(model, images)
    path = tmp_path / "prelu.onnx"
    qat_lib.export_onnx(model, path, channels_first_input=channels_first)
    graph = onnx.load(path).graph
    found = Counter(node.op_type for node in graph.node)
    assert found["PRelu"] == 4
    assert found["Add"] == 1
    assert not {"Neg", "Relu", "Mul"} & set(found)
    assert found["Transpose"] == (0 if channels_first else 1)
    slopes = {n.input[1] for n in graph.node if n.op_type == "PRelu"}
    shapes = {tuple(t.dims) for t in graph.initializer if t.name in slopes}
    assert shapes == {(1, 4, 1, 1), (1, 4, 6, 6), (1, 4, 1, 6), (5,)}
    assert qat_lib.check_parity(model, path, images).passed
    assert len(analyze_onnx(path).adds) == 1
