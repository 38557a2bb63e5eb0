"""write_clips: each condition."""

import keras
import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.export import passes

X = {"x": np.float32([[-900, -1, 0, 0.3, 1.27, 1.3, 2.54, 900]])}
CONSTANTS = {
    "zero": np.float32(0),
    "one": np.float32([1]),
    "two": np.float32(2),
    "tops": np.float32([1, 9, 9, 9, 9, 9, 9, 9]),
}


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("Min(Relu(x), two)", 0, 2),
        ("Min(two, Relu(x))", 0, 2),
        ("Relu(Min(x, two))", 0, 2),
        ("Max(Min(Relu(x), two), zero)", 0, 2),
        ("Min(Max(x, one), two)", 1, 2),
        ("Max(Min(x, one), two)", 2, 2),
        ("Relu(Relu(x))", None, None),
        ("Relu(x)", None, None),
        ("Min(x, two)", None, None),
        ("Min(Relu(x), tops)", None, None),
        ("Min(Relu(x), Abs(two))", None, None),
        ("Min(Relu(x), two, one)", None, None),
    ],
)
def test_write_clips(lab, text, low, high):
    model = lab.formula(f"{text}; Exp(x)", X, **CONSTANTS)
    lowered = lab.check(model, passes.write_clips, X)
    clips = [node for node in lowered.graph if node.op_type == "Clip"]
    if low is None:
        assert lab.results(lowered) == lab.results(model)
        return
    (clip,) = clips
    assert [float(value.const_value.numpy()) for value in clip.inputs[1:]] == [low, high]
    assert not {"Relu", "Min", "Max"} & {node.op_type for node in lowered.graph}


def test_write_clips_keeps_what_others_read(lab):
    model = lab.formula("m = Relu(x); Min(m, two); Exp(m)", X, **CONSTANTS)
    lowered = lab.check(model, passes.write_clips, X)
    assert lab.results(lowered) == lab.results(model)


@pytest.mark.parametrize("bound", [6.0, 5.37])
def test_bounded_relu_is_one_clip(tmp_path, bound):
    x = keras.Input((8, 8, 3))
    y = keras.layers.ReLU(bound)(keras.layers.Conv2D(4, 1)(x))
    qat_lib.export_onnx(keras.Model(x, y), tmp_path / "net.onnx")
    operators = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    assert operators == ["Transpose", "Conv", "Clip", "Transpose"]
