"""Single-operator passes: each condition, with a case that violates it."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.errors import ExportError
from qat_lib.export import passes
from qat_lib.export.passes.layout_axes import squeeze_above, unsqueeze_above


def ints(*values):
    return np.asarray(values, np.int64)


def image(rng, *shape):
    return {"x": rng.normal(size=shape or (2, 3, 4, 4)).astype(np.float32)}


IDENTITIES = {
    "Identity(x)": True,
    "Dropout(x)": True,
    "Dropout(x, ratio)": True,
    "Dropout(x, ratio, no)": True,
    "Dropout(x, , no)": True,
    "Dropout(x, ratio, yes)": False,
    "Cast<to = 1>(x)": True,
    "Cast<to = 10>(x)": False,
    "Transpose<perm = [0,1,2,3]>(x)": True,
    "Transpose<perm = [0,1,3,2]>(x)": False,
    "Transpose(x)": False,
    "Pad(x, none)": True,
    "Pad(x, one)": False,
    "Concat<axis = 1>(x)": True,
    "Concat<axis = 1>(x, x)": False,
    "Sum(x)": True,
    "Max(x, x)": False,
    "Relu(x)": False,
    "Mul(unit, x)": True,
    "Mul(x, unit)": True,
    "Mul(x, ratio)": False,
    "Mul(x, ones)": False,
}


@pytest.mark.parametrize("text", IDENTITIES)
def test_remove_identities(lab, text):
    model = lab.build(
        f"(float[2,3,4,4] x) => (float y) {{ a = {text}\n b = Exp(a)\n y = Cast<to = 1>(b) }}",
        ratio=np.float32(0.5),
        unit=np.float32(1),
        ones=np.ones((1, 1, 1, 1, 1), np.float32),
        no=np.asarray(False),
        yes=np.asarray(True),
        none=np.zeros(8, np.int64),
        one=ints(0, 0, 0, 0, 0, 0, 0, 1),
    )
    lowered = passes.remove_identities(model)
    assert (lab.node(lowered, "Exp").inputs[0].name == "x") is IDENTITIES[text]


UNREAD = {"ratio": np.float32(0.5), "no": np.asarray(False), "none": np.zeros(8, np.int64)}


def test_remove_identities_keeps_a_dropout_whose_mask_is_read(lab):
    model = lab.build(
        "(float[2,3] x) => (float y, bool m) { a, b = Dropout(x)\n y = Exp(a)\n m = Not(b) }"
    )
    assert lab.ops(passes.remove_identities(model))["Dropout"] == 1
    model = lab.build("(float[2,3] x) => (float y) { a, b = Dropout(x)\n y = Exp(a) }")
    assert lab.ops(passes.remove_identities(model))["Dropout"] == 0


def test_remove_identities_removes_what_only_they_read(lab):
    model = lab.formula(
        "Exp(Pad(Dropout(x, ratio, no), none))", image(np.random.default_rng(0)), **UNREAD
    )
    lowered = passes.remove_identities(model)
    assert lab.results(lowered) == ["Exp(x)"]
    assert lab.constants(lowered) == {}


def test_remove_identities_continues_behind_required_output(lab):
    model = lab.formula(
        "Identity(x); Exp(Identity(x)); Relu(Identity(w))",
        {"x": np.float32([1])},
        w=np.float32([2]),
    )
    assert lab.results(passes.remove_identities(model)) == ["Identity(x)", "Exp(x)", "Relu(w)"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("(float[2] x) => (float[2] y) { y = Identity(x) }", 1),
        ("(float[2] x) => (float[2] y) { y = Identity(c) }", 1),
        ("(float[2] x) => (float[2] y, float[2] z) { y = Exp(x)\n z = Identity(y) }", 1),
        ("(float[2] x) => (float[2] y) { a = Exp(x)\n y = Identity(a) }", 0),
        ("(float[2] x) => (float[2] y) { a = Identity(x)\n y = Exp(a) }", 0),
    ],
)
def test_remove_identities_leaves_each_output_a_node(lab, text, kept):
    lowered = lab.check(
        lab.build(text, c=np.float32([1, 2])), passes.remove_identities, {"x": np.float32([1, 2])}
    )
    assert lab.ops(lowered)["Identity"] == kept


@pytest.mark.parametrize(
    ("pads", "expected", "beyond"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], None),
        ([1, 1, 1, 1], [1, 1, 1, 1], None),
        ([0, -1, 0, -1], [0, 0, 0, 0], [0, 2]),
        ([0, 0, -1, 0], [0, 0, 0, 0], [1, 0]),
        ([1, -1, 2, 0], [1, 0, 2, 0], [0, 1]),
        ([2, 0, -1, 1], [2, 0, -1, 1], [0, 0]),
        ([1, -1, -1, 0], [1, 0, -1, 0], [0, 1]),
    ],
)
def test_use_output_padding(lab, pads, expected, beyond):
    model = lab.build(
        f"(float[1,2,4,4] x) => (float y) {{ y = ConvTranspose<pads = {pads}, strides = [3,3]>(x, w) }}",
        w=np.ones((2, 2, 3, 3), np.float32),
    )
    node = lab.node(passes.use_output_padding(model), "ConvTranspose")
    assert list(node.attributes["pads"].value) == expected
    found = node.attributes.get("output_padding")
    assert (None if found is None else list(found.value)) == beyond


def test_use_output_padding_continues_behind_unpadded_convolution(lab):
    call = "ConvTranspose<pads = {}, strides = [3,3]>"
    text = f"a = {call.format([0, 0, 0, 0])}(x, w)\n y = {call.format([0, -1, 0, 0])}(a, w)"
    model = lab.build(
        f"(float[1,2,4,4] x) => (float y) {{ {text} }}", w=np.ones((2, 2, 3, 3), np.float32)
    )
    first, second = passes.use_output_padding(model).graph
    assert "output_padding" not in first.attributes
    assert list(second.attributes["output_padding"].value) == [0, 1]


@pytest.mark.parametrize(
    ("text", "pool"),
    [
        ("ReduceMean<axes = [2,3]>(x)", "GlobalAveragePool"),
        ("ReduceMean<axes = [3,2]>(x)", "GlobalAveragePool"),
        ("ReduceMean<axes = [-1,-2]>(x)", "GlobalAveragePool"),
        ("ReduceMax<axes = [-2,3]>(x)", "GlobalMaxPool"),
        ("ReduceMax<axes = [2,3], keepdims = 0>(x)", "GlobalMaxPool"),
        ("ReduceMean<axes = [1,2]>(x)", None),
        ("ReduceMean<axes = [2]>(x)", None),
        ("ReduceMean<axes = [1,2,3]>(x)", None),
        ("ReduceMean(x)", None),
        ("ReduceMin<axes = [2,3]>(x)", None),
    ],
)
def test_use_global_pools(lab, rng, text, pool):
    model = lab.build(f"(float[2,3,4,4] x) => (float y) {{ y = {text} }}")
    lowered = lab.check(model, passes.use_global_pools, image(rng), rtol=1e-5, atol=1e-6)
    assert (pool in lab.ops(lowered)) is (pool is not None)
    assert lab.ops(lowered)["Flatten"] == ("keepdims = 0" in text)


def test_use_global_pools_takes_images_of_rank_four(lab, rng):
    model = lab.build("(float[2,4,4,3,5] x) => (float y) { y = ReduceMean<axes = [2,3]>(x) }")
    assert (
        lab.ops(lab.check(model, passes.use_global_pools, image(rng, 2, 4, 4, 3, 5), rtol=1e-5))[
            "ReduceMean"
        ]
        == 1
    )


@pytest.mark.parametrize(
    ("clamp", "unsigned", "signed"),
    [
        ("Relu(x)", True, False),
        ("Clip(x)", True, True),
        ("Clip(x, zero)", True, False),
        ("Clip(x, zero, top)", True, False),
        ("Clip(x, zero, near)", True, False),  # rounds to the top
        ("Clip(x, zero, below)", False, False),
        ("Clip(x, minus, top)", True, False),
        ("Clip(x, plus, top)", False, False),
        ("Clip(x, , top)", True, True),
        ("Clip(x, , below)", False, True),
        ("Clip(x, zero, far)", True, False),
        ("LeakyRelu(x)", False, False),
    ],
)
@pytest.mark.parametrize("zero_point", [np.uint8(0), np.int8(0)], ids=["uint8", "int8"])
def test_remove_redundant_bounds(lab, rng, clamp, unsigned, signed, zero_point):
    model = lab.build(
        f"""(float[2,3,4,4] x) => (float y) {{
            a = {clamp}
            q = QuantizeLinear(a, s, z)
            y = DequantizeLinear(q, s, z) }}""",
        s=np.float32(0.01),
        z=zero_point,
        zero=np.float32(0),
        minus=np.float32(-1),
        plus=np.float32(0.01),
        top=np.float32(2.55),
        near=np.float32(2.546),
        below=np.float32(2.544),
        far=np.float32(100),
    )
    lowered = lab.check(model, passes.remove_redundant_bounds, image(rng))
    assert (lab.node(lowered, "QuantizeLinear").inputs[0].name == "x") is (
        unsigned if zero_point.dtype == np.uint8 else signed
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (65504.0, 65504.0),
        (-65504.0, -65504.0),
        (0.1, np.float16(0.1)),
        (np.inf, 65504.0),
        (-np.inf, -65504.0),
    ],
)
def test_half_constants(lab, value, written):
    model = lab.build("(float[2] x) => (float y) { y = Add(x, c) }", c=np.float32([1, value]))
    (constant,) = [
        tensor.const_value.numpy()
        for tensor in passes.convert_float_to_half(model).graph.initializers.values()
        if tensor.dtype == ir.DataType.FLOAT16 and tensor.uses()
    ]
    assert constant.dtype == np.float16
    assert list(constant) == [1, written]


@pytest.mark.parametrize("value", [65505.0, -65505.0, 1e9])
def test_half_refuses_constants_beyond_its_range(lab, value):
    model = lab.build("(float[2] x) => (float y) { y = Add(x, c) }", c=np.float32([1, value]))
    with pytest.raises(ExportError, match=re.escape(f"Received {abs(value):g} in")):
        passes.convert_float_to_half(model)


@pytest.mark.parametrize(
    ("perm", "axis", "dropped", "left"),
    [
        ([0, 3, 1, 2], 0, 0, [2, 0, 1]),
        ([0, 3, 1, 2], 1, 3, [0, 1, 2]),
        ([0, 3, 1, 2], 2, 1, [0, 2, 1]),
        ([0, 3, 1, 2], 3, 2, [0, 2, 1]),
        ([1, 0], 0, 1, [0]),
    ],
)
def test_squeeze_above(perm, axis, dropped, left):
    assert squeeze_above(perm, axis) == (dropped, left)
    x = (
        np.arange(np.prod(range(2, 2 + len(perm))))
        .reshape(range(2, 2 + len(perm)))
        .take([0], axis=perm[axis])
    )
    expected = x.transpose(perm).squeeze(axis)
    assert np.array_equal(x.squeeze(dropped).transpose(left), expected)


@pytest.mark.parametrize("perm", [[0, 2, 1], [2, 0, 1], [1, 2, 0], [0, 1, 2]])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_unsqueeze_above(perm, axis):
    added, behind = unsqueeze_above(perm, axis)
    x = np.arange(24).reshape(2, 3, 4)
    expected = np.expand_dims(x.transpose(perm), axis)
    assert np.array_equal(np.expand_dims(x, added).transpose(behind), expected)
    if axis < 3:  # the axis that was on its right still is
        assert added == perm[axis]
