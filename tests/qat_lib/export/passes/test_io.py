"""Graph inputs: each preprocessing step, each shape, each reader."""

import re

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export import passes
from qat_lib.export.graph import LAYER, consumers
from qat_lib.preprocessing import Preprocessing

IMAGE = (4, 6, 3)
FLOATS = {"x": np.linspace(-1, 1, 144, dtype=np.float32).reshape(2, *IMAGE)}
SCALED = "Mul(Cast<to = 1>(x), preprocessing/Mul)"


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({}, SCALED),
        ({"scale": 1.0}, "Cast<to = 1>(x)"),
        ({"dtype": "float32"}, "Mul(x, preprocessing/Mul)"),
        ({"dtype": "float32", "scale": 2.0}, "Mul(x, preprocessing/Mul)"),
        ({"dtype": "float32", "scale": 1.0}, "x"),
        ({"mean": (1.0,)}, f"Sub({SCALED}, preprocessing/Sub)"),
        ({"mean": (0.0, 0.0, 0.5)}, f"Sub({SCALED}, preprocessing/Sub)"),
        ({"std": (2.0,)}, f"Div({SCALED}, preprocessing/Div)"),
        ({"std": (1.0, 0.5, 1.0)}, f"Div({SCALED}, preprocessing/Div)"),
        (
            {"scale": 2.0, "mean": (1.0, 2.0, 3.0), "std": (2.0, 1.0, 4.0)},
            f"Div(Sub({SCALED}, preprocessing/Sub), preprocessing/Div)",
        ),
        ({"dtype": "float32", "scale": 1.0, "mean": (0.25,)}, "Sub(x, preprocessing/Sub)"),
        ({"dtype": "float32", "scale": 1.0, "std": (0.25,)}, "Div(x, preprocessing/Div)"),
    ],
)
def test_embed_preprocessing_writes_the_steps_that_change_something(lab, rng, settings, data):
    preprocessing = Preprocessing(image_shape=IMAGE, **settings)
    model = lab.formula("Add(Relu(x), x); Neg(x)", FLOATS)
    embedded = passes.embed_preprocessing(model, preprocessing)
    assert lab.results(embedded) == [f"Add(Relu({data}), {data})", f"Neg({data})"]
    raw = rng.integers(0, 256, (2, *IMAGE)).astype(preprocessing.dtype)
    for want, got in zip(
        lab.run(model, x=preprocessing.apply(raw)), lab.run(embedded, x=raw), strict=True
    ):
        np.testing.assert_array_equal(got, want)
    for node in embedded.graph:
        if node.op_type in ("Cast", "Mul", "Sub", "Div"):
            assert node.meta[LAYER] == "preprocessing"
            assert node.outputs[0].dtype.name == "FLOAT"
            assert list(node.outputs[0].shape) == [2, *IMAGE]


def test_embed_preprocessing_follows_input_layout(lab, rng):
    preprocessing = Preprocessing(image_shape=(4, 6, 3), mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    model = lab.formula("Relu(x)", {"x": np.zeros((2, 3, 4, 6), np.float32)})
    embedded = passes.embed_preprocessing(model, preprocessing, "NCHW")
    assert list(embedded.graph.inputs[0].shape) == [2, 3, 4, 6]
    raw = rng.integers(0, 256, (2, 4, 6, 3)).astype(np.uint8)
    (received,) = lab.run(embedded, x=raw.transpose(0, 3, 1, 2))
    (expected,) = lab.run(model, x=preprocessing.apply(raw).transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(received, expected)
    with pytest.raises(ExportError, match=r"gives \[3, 4, 6\]"):
        passes.embed_preprocessing(
            lab.formula("Relu(x)", {"x": np.zeros((2, 4, 6, 3), np.float32)}), preprocessing, "NCHW"
        )


@pytest.mark.parametrize("shape", [(None, None, None, None), ("batch", 4, None, 3), (2, 4, 6, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_embed_preprocessing_gives_the_input_the_images_shape(lab, shape, dtype):
    model = lab.formula("Relu(x)", FLOATS)
    value = model.graph.inputs[0]
    value.shape = type(value.shape)(shape)
    embedded = passes.embed_preprocessing(
        model, Preprocessing(image_shape=IMAGE, dtype=dtype)
    ).graph.inputs[0]
    assert embedded.shape[1:] == IMAGE
    assert embedded.shape[0] == value.shape[0]
    assert embedded.dtype.name == {"uint8": "UINT8", "float32": "FLOAT"}[dtype]


@pytest.mark.parametrize(
    "shape",
    [
        (2, 5, 6, 3),
        (2, 4, 5, 3),
        (2, 4, 6, 1),
        (2, None, 6, 4),
        (2, 4, 6),
        (4, 6, 3),
        (2, 4, 6, 3, 1),
        (2,),
    ],
)
def test_embed_preprocessing_refuses_another_shape(lab, shape):
    model = lab.formula("Relu(x)", FLOATS)
    model.graph.inputs[0].shape = type(model.graph.inputs[0].shape)(shape)
    message = f"model's input shape {list(shape[1:])}. The preprocessing gives [4, 6, 3]."
    with pytest.raises(ExportError, match=re.escape(message)):
        passes.embed_preprocessing(model, Preprocessing(image_shape=IMAGE))


def test_embed_preprocessing_refuses_several_inputs(lab):
    model = lab.formula("Add(x, v)", {**FLOATS, "v": np.float32([1])})
    with pytest.raises(ExportError, match="Received 2 inputs"):
        passes.embed_preprocessing(model, Preprocessing(image_shape=IMAGE))


def test_embed_preprocessing_leaves_an_input_of_unknown_shape(lab):
    model = lab.formula("Relu(x)", FLOATS)
    model.graph.inputs[0].shape = None
    assert lab.results(passes.embed_preprocessing(model, Preprocessing(image_shape=IMAGE))) == [
        "Relu(x)"
    ]


FIRST = "Transpose<perm = [0, 3, 1, 2]>(x)"
BACK = "Transpose<perm = [0, 2, 3, 1]>(x)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"Relu({FIRST})", "Relu(x)"),
        ("Relu(x)", f"Relu({BACK})"),
        (f"Relu({FIRST}); Relu(x)", f"Relu(x); Relu({BACK})"),
        (f"Relu({FIRST}); Exp({FIRST})", "Relu(x); Exp(x)"),
        (
            "Relu(Transpose<perm = [0, 1, 3, 2]>(x))",
            f"Relu(Transpose<perm = [0, 1, 3, 2]>({BACK}))",
        ),
        ("Relu(Transpose(x))", f"Relu(Transpose({BACK}))"),
        ("Mul(x, x)", f"Mul({BACK}, {BACK})"),
        ("Sub(c, x); Neg(c)", f"Sub(c, {BACK}); Neg(c)"),
        (f"Sub({FIRST}, {FIRST}); Sub(x, c)", f"Sub(x, x); Sub({BACK}, c)"),
    ],
)
def test_convert_inputs_to_nchw(lab, before, after):
    model = lab.formula(before, FLOATS, c=np.float32([1, 2, 3]))
    lowered = passes.convert_inputs_to_nchw(model)
    assert lab.results(lowered) == after.split("; ")
    first = {"x": np.ascontiguousarray(FLOATS["x"].transpose(0, 3, 1, 2))}
    for want, got in zip(lab.run(model, **FLOATS), lab.run(lowered, **first), strict=True):
        np.testing.assert_array_equal(got, want)
    assert list(lowered.graph.inputs[0].shape) == [2, 3, 4, 6]
    assert set(consumers(lowered.graph.inputs[0])) <= set(lowered.graph)
    for node in lowered.graph:
        if list(node.outputs[0].shape) == [2, 4, 6, 3] and node.op_type == "Transpose":
            assert node.meta[LAYER] == "x"
            assert node.outputs[0].dtype.name == "FLOAT"


def test_convert_inputs_to_nchw_leaves_other_ranks(lab):
    inputs = {
        "v": np.ones((2, 3, 4), np.float32),
        "u": np.ones((2, 3, 4, 5, 6), np.float32),
        "k": np.ones(1, np.float32),
    }
    model = lab.formula(f"Exp(v); Exp(u); Exp(k); Relu({FIRST})", {**inputs, **FLOATS})
    model.graph.inputs[2].shape = None
    lowered = passes.convert_inputs_to_nchw(model)
    assert lab.results(lowered) == ["Exp(v)", "Exp(u)", "Exp(k)", "Relu(x)"]
    assert [list(value.shape or "?") for value in lowered.graph.inputs] == [
        [2, 3, 4],
        [2, 3, 4, 5, 6],
        ["?"],
        [2, 3, 4, 6],
    ]
