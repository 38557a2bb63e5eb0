"""Nearest-neighbour upsampling as one Resize."""

from collections import Counter

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.analysis import analyze_onnx
from qat_lib.export import passes

keras = pytest.importorskip("keras")
L = keras.layers

REPEATS = """(float[b,4,5,3] x) => (float[b,8,15,3] y) {
    a = Unsqueeze(x, two)
    b1 = Tile(a, rows)
    c = Reshape(b1, tall)
    d = Unsqueeze(c, three)
    e = Tile(d, columns)
    y = Reshape(e, whole) }"""
GIVEN = {
    "two": np.array([2]),
    "three": np.array([3]),
    "rows": np.array([1, 1, 2, 1, 1]),
    "columns": np.array([1, 1, 1, 3, 1]),
    "tall": np.array([-1, 8, 5, 3]),
    "whole": np.array([-1, 8, 15, 3]),
}


def image(rng):
    return {"x": rng.normal(size=(2, 4, 5, 3)).astype(np.float32)}


def typed(model):
    """Give the reshaped tensors the shapes that the conversion knows."""
    for node in model.graph:
        if node.op_type == "Reshape":
            target = node.inputs[1].const_value.numpy()
            node.outputs[0].shape = type(node.outputs[0].shape)(["b", *map(int, target[1:])])
    return model


def test_repeats_of_both_axes_become_one_resize(lab, rng):
    lowered = lab.check(typed(lab.build(REPEATS, **GIVEN)), passes.use_nearest_resize, image(rng))
    assert lab.order(lowered) == ["Transpose", "Resize", "Transpose"]
    assert lab.node(lowered, "Resize").inputs[2].const_value.numpy().tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("factor", [2, 3, 4, 5, 6, 7, 8, 10, 32])
def test_every_factor_is_exact(lab, rng, factor):
    text = REPEATS.replace("b,8,15", f"b,{4 * factor},{5 * factor}")
    given = {
        **GIVEN,
        "rows": np.array([1, 1, factor, 1, 1]),
        "columns": np.array([1, 1, 1, factor, 1]),
        "tall": np.array([-1, 4 * factor, 5, 3]),
        "whole": np.array([-1, 4 * factor, 5 * factor, 3]),
    }
    lowered = lab.check(typed(lab.build(text, **given)), passes.use_nearest_resize, image(rng))
    assert lab.ops(lowered)["Resize"] == 1


@pytest.mark.parametrize(
    "change",
    [
        # The whole rows repeat, not each by itself: the new axis stands in front of the old one.
        {"two": np.array([1]), "rows": np.array([1, 2, 1, 1, 1])},
        {
            "tall": np.array([-1, 5, 8, 3]),
            "columns": np.array([1, 1, 1, 1, 3]),
            "three": np.array([4]),
        },
    ],
    ids=["tiled", "regrouped"],
)
def test_what_is_no_repeat_stays(lab, rng, change):
    text = (
        REPEATS
        if "tall" not in change
        else REPEATS.replace("float[b,8,15,3] y", "float[b,8,15,3] y")
    )
    lowered = lab.check(
        typed(lab.build(text, **{**GIVEN, **change})), passes.use_nearest_resize, image(rng)
    )
    assert lab.ops(lowered)["Tile"] >= 1


def test_a_decoder_has_no_transposes_inside(tmp_path):
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((8, 8, 4))
    skip = L.Conv2D(16, 3, padding="same", activation="relu")(x)
    y = L.Conv2D(16, 3, padding="same", activation="relu")(L.MaxPooling2D(2)(skip))
    y = L.Conv2D(8, 3, activation="relu")(L.Concatenate()([skip, L.UpSampling2D(2)(y)]))
    model = keras.Model(
        inputs, L.GlobalAveragePooling2D()(L.Conv2D(3, 1)(L.UpSampling2D((2, 3))(y)))
    )
    data = np.random.default_rng(0).normal(size=(4, 8, 8, 4)).astype(np.float32)
    quantized = qat_lib.quantize_model(model, custom_qdq_cases=[qat_lib.TensorRTQDQCase()])
    qat_lib.calibrate(quantized, data, method="max")
    for network in (model, quantized):
        path = tmp_path / "decoder.onnx"
        qat_lib.export_onnx(network, path)
        ops = Counter(node.op_type for node in onnx.load(path).graph.node)
        assert (ops["Transpose"], ops["Resize"], ops["Tile"], ops["Reshape"]) == (1, 2, 0, 0)
        assert qat_lib.check_parity(network, path, data, layers=True).passed
    report = qat_lib.analyze_onnx(path)
    assert report.int8_layers == len(report.layers) == 4
    assert [f for f in report.findings if f.severity != "info"] == []


def feature_pyramid(side):
    """Return a network that adds an upsampled map to a larger one."""
    x = keras.Input((side, side, 3), name="image")
    coarse = L.Conv2D(16, 3, strides=2, padding="same", activation="relu", name="coarse")(x)
    fine = L.Conv2D(16, 3, padding="same", activation="relu", name="fine")(x)
    up = L.UpSampling2D(2, interpolation="nearest", name="up")(coarse)
    fine = L.Conv2D(16, 3, padding="same", name="lateral")(fine)
    return keras.Model(x, L.Conv2D(4, 3, name="head")(L.ReLU()(L.Add(name="sum")([fine, up]))))


@pytest.mark.parametrize("side", [8, None])
def test_upsampled_residual_is_int8_at_any_size(side, rng, tmp_path):
    images = rng.uniform(-1, 1, (2, 8, 8, 3)).astype(np.float32)
    model = qat_lib.quantize_model(
        feature_pyramid(side), custom_qdq_cases=[qat_lib.TensorRTQDQCase()]
    )
    qat_lib.calibrate(model, images)
    path = tmp_path / "up.onnx"
    qat_lib.export_onnx(model, path)
    found = Counter(node.op_type for node in onnx.load(path).graph.node)
    assert found["Resize"] == 1
    assert not {"Shape", "Tile", "Reshape"} & set(found)
    assert qat_lib.check_parity(model, path, images).passed
    report = analyze_onnx(path)
    assert report.fused_adds == 1
    assert [f for f in report.findings if f.severity != "info"] == []


def test_repeat_with_another_computed_size_stays(lab, rng):
    text = """(float[b,h,w,3] x) => (float[B,H,W,3] y) {
        shape = Shape(x)
        target = Mul(shape, factors)
        a = Unsqueeze(x, two)
        t = Tile(a, rows)
        y = Reshape(t, target) }"""
    given = {"two": np.array([2]), "rows": np.array([1, 1, 2, 1, 1])}
    x = {"x": rng.normal(size=(2, 4, 6, 3)).astype(np.float32)}
    for factors, resized in (([1, 2, 1, 1], 1), ([1, 1, 2, 1], 0), ([2, 1, 1, 1], 0)):
        model = lab.build(text, factors=np.array(factors), **given)
        assert lab.ops(lab.check(model, passes.use_nearest_resize, x))["Resize"] == resized
