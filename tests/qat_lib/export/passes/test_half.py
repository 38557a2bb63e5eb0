"""What stays float32 in float16: constants, nodes, inputs and outputs."""

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.errors import ExportError
from qat_lib.export import passes
from qat_lib.export.graph import LAYER

X = {"x": np.float32([[1, -2, 3]])}
C = np.float32([0.1, 2, 3])


def dtypes(model):
    return {value.name: value.dtype.name for node in model.graph for value in node.outputs}


def test_halves_constants_and_casts_at_the_border(lab):
    model = lab.formula("Add(Mul(x, c), c); Relu(x)", X, c=C)
    half = passes.convert_float_to_half(model)
    cast = "Cast<to = 10>(x)"
    assert lab.results(half) == [
        f"Cast<to = 1>(Add(Mul({cast}, c_1), c_1))",
        f"Cast<to = 1>(Relu({cast}))",
    ]
    assert [value.name for value in half.graph.outputs] == [
        value.name for value in model.graph.outputs
    ]
    assert [value.dtype.name for value in (*half.graph.inputs, *half.graph.outputs)] == [
        "FLOAT"
    ] * 3
    (constant,) = lab.constants(half).values()
    np.testing.assert_array_equal(constant, C.astype(np.float16))
    assert constant.dtype == np.float16
    for want, got in zip(lab.run(model, **X), lab.run(half, **X), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3)
    first = lab.node(half, "Cast")
    assert first.meta[LAYER] == "x"
    assert list(first.outputs[0].shape) == [1, 3]
    assert [list(value.shape) for value in half.graph.outputs] == [[1, 3], [1, 3]]
    inner = {
        node.op_type: node.outputs[0].dtype.name for node in half.graph if node.op_type != "Cast"
    }
    assert inner == {"Add": "FLOAT16", "Mul": "FLOAT16", "Relu": "FLOAT16"}


def test_leaves_other_types_at_the_border(lab):
    """Inputs and outputs of other types, each before a float one.

    One of the inputs is read by nothing.
    """
    inputs = {"i": np.asarray([[1, 2, 3]]), "b": np.asarray([True]), "u": np.float32([1]), **X}
    model = lab.formula("Neg(i); Not(b); Shape(x); Relu(x)", inputs)
    half = passes.convert_float_to_half(model)
    assert lab.results(half) == [
        "Neg(i)",
        "Not(b)",
        "Shape(Cast<to = 10>(x))",
        "Cast<to = 1>(Relu(Cast<to = 10>(x)))",
    ]


def test_leaves_an_input_that_is_an_output(lab):
    model = lab.build("(float[3] x) => (float[3] x, float y) { y = Relu(x) }")
    half = passes.convert_float_to_half(model)
    assert [value.dtype.name for value in half.graph.outputs] == ["FLOAT"] * 2
    assert lab.results(half)[1] == "Cast<to = 1>(Relu(Cast<to = 10>(x)))"


@pytest.mark.parametrize(
    ("cast", "after"),
    [
        ("Cast<to = 1>(i)", "Cast<to = 10>(i)"),
        ("Cast<to = 7>(i)", "Cast<to = 7>(i)"),
        ("Cast<to = 11>(i)", "Cast<to = 11>(i)"),
    ],
)
def test_casts_to_float32_become_casts_to_half(lab, cast, after):
    model = lab.formula(f"Neg({cast})", {"i": np.int32([1])})
    half = passes.convert_float_to_half(model)
    (result,) = lab.results(half)
    assert result == (f"Cast<to = 1>(Neg({after}))" if "= 1>" in cast else f"Neg({after})")


def test_keeps_constants_of_other_types(lab):
    model = lab.formula("Add(i, c)", {"i": np.asarray([1])}, c=np.asarray([1 << 40]))
    assert lab.constants(passes.convert_float_to_half(model))["c"].tolist() == [1 << 40]
    model = lab.formula("Add(d, c)", {"d": np.float64([1])}, c=np.float64([1e300]))
    assert lab.constants(passes.convert_float_to_half(model))["c"].tolist() == [1e300]


def test_keeps_a_resizes_scales_in_float32(lab):
    image = {"x": np.ones((1, 1, 2, 2), np.float32)}
    constants = {"roi": np.zeros(8, np.float32), "scales": np.float32([1, 1, 2, 2])}
    text = 'Resize<coordinate_transformation_mode = "tf_crop_and_resize">(x, roi, scales); Mul(scales, v)'
    half = passes.convert_float_to_half(
        lab.formula(text, {**image, "v": np.float32([3])}, **constants)
    )
    resize = lab.node(half, "Resize")
    assert [value.dtype.name for value in resize.inputs] == ["FLOAT16", "FLOAT", "FLOAT"]
    # Another reader of the same constant gets it in half.
    assert lab.node(half, "Mul").inputs[0].dtype.name == "FLOAT16"


@pytest.mark.parametrize("op", ["QuantizeLinear(x, s, z)", "DequantizeLinear(i, s, z)"])
@pytest.mark.parametrize(
    ("scale", "written"), [(1e-9, 2.0**-24), (2.0**-24, 2.0**-24), (2.0**-23, 2.0**-23), (0.5, 0.5)]
)
def test_scales_stay_positive(lab, op, scale, written):
    model = lab.formula(
        f"{op}; Neg(x)", {**X, "i": np.int8([[1]])}, opset=19, s=np.float32(scale), z=np.int8(0)
    )
    constants = lab.constants(passes.convert_float_to_half(model))
    (found,) = [value for value in constants.values() if value.dtype == np.float16]
    assert found == np.float16(written)


@pytest.mark.parametrize("text", ["Mul(x, c)", "Mul(c, x)", "Clip(x, c)"])
def test_other_constants_may_become_zero(lab, text):
    model = lab.formula(text, X, c=np.float32(1e-9))
    (found,) = lab.constants(passes.convert_float_to_half(model)).values()
    assert found == 0


def test_weights_behind_a_quantizer_may_be_zero(lab):
    """A QuantizeLinear's input 1 is the scale, input 0 the weights."""
    model = lab.formula(
        "DequantizeLinear(QuantizeLinear(w, s, z), s, z); Neg(x)",
        X,
        opset=19,
        w=np.float32([0, -1]),
        s=np.float32(0.5),
        z=np.int8(0),
    )
    half = passes.convert_float_to_half(model)
    assert np.asarray(lab.node(half, "QuantizeLinear").inputs[0].const_value).tolist() == [0, -1]


@pytest.mark.parametrize(
    "text", ["Min(x, c)", "Max(x, c)", "Clip(x, c)", "Clip(x, , c)", "Where(m, x, c)"]
)
@pytest.mark.parametrize(
    ("value", "written"), [(1e6, 65504), (-1e6, -65504), (np.inf, 65504), (3, 3)]
)
def test_bounds_and_masks_saturate(lab, text, value, written):
    model = lab.formula(text, X, c=np.float32(value), m=np.asarray([True]))
    constants = lab.constants(passes.convert_float_to_half(model))
    assert [array for array in constants.values() if array.dtype == np.float16] == [written]


@pytest.mark.parametrize(
    ("text", "reader"),
    [("Add(x, c)", "node_0"), ("Min(x, c); Add(x, c)", "node_0"), ("Add(c, Add(x, c))", "node_0")],
)
def test_another_reader_of_such_a_constant_is_named(lab, text, reader):
    model = lab.formula(text, X, c=np.float32([1, -70000, 2]))
    with pytest.raises(ExportError, match=f"Received 70000 in 'c', read by '{reader}'"):
        passes.convert_float_to_half(model)


@pytest.mark.parametrize("value", [65504, -65504, np.inf, -np.inf])
def test_the_largest_number_and_infinity_are_taken(lab, value):
    model = lab.formula("Add(x, c)", X, c=np.float32([1, value, 2]))
    (found,) = lab.constants(passes.convert_float_to_half(model)).values()
    assert found.tolist() == [1, np.sign(value) * 65504, 2]


def test_constants_that_nothing_reads_are_no_reason_to_refuse(lab):
    model = lab.build("(float[2] x) => (float y) { y = Relu(x) }", c=np.float32([1e9]))
    assert lab.order(passes.convert_float_to_half(model)) == ["Cast", "Relu", "Cast"]


def test_every_output_of_a_node_is_half(lab):
    model = lab.build("(float[4] x) => (float y) { a, b = Split<axis = 0>(x)\n y = Add(a, b) }")
    split = lab.node(passes.convert_float_to_half(model), "Split")
    assert [value.dtype for value in split.outputs] == [ir.DataType.FLOAT16] * 2
