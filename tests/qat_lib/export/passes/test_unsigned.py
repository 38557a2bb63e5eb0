"""UINT8 in place of INT8, and clamps that unsigned quantizers replace.

Each condition of each.
"""

import numpy as np
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import LAYER, QUANTIZER

X = {"x": np.float32([[-900, -1, 0, 0.3, 0.5, 1.1, 1.27, 900]])}
CONSTANTS = {
    "s": np.float32(0.01),
    "s1": np.float32([0.01]),
    "s8": np.full(8, 0.01, np.float32),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "z8": np.zeros(8, np.int8),
    "u": np.uint8(0),
    "u1": np.uint8([0]),
    "u8": np.zeros(8, np.uint8),
    "w": np.float32([[0, 1, 2, 3, 4, 5, 6, 7]]),
    "zero": np.float32(0),
    "half": np.float32(0.5),
    "minus": np.float32(-1),
    "one": np.float32(1),
    "many": np.float32(100),
}


def pair(data, scale="s", zero="z"):
    return f"DequantizeLinear(QuantizeLinear({data}, {scale}, {zero}), {scale}, {zero})"


def unsigned(data):
    return f"DequantizeLinear(QuantizeLinear({data}, s, Z), s, Z)"


CLIPPED = [
    ("Relu(x)", "Clip(x, L, H)", 0, 1.27),
    ("Relu(Exp(x))", "Clip(Exp(x), L, H)", 0, 1.27),
    ("Clip(x, zero)", "Clip(x, L, H)", 0, 1.27),
    ("Clip(x, half)", "Clip(x, L, H)", 0.5, 1.27),
    ("Clip(x, zero, one)", "Clip(x, L, H)", 0, 1),
    ("Clip(x, half, one)", "Clip(x, L, H)", 0.5, 1),
    ("Clip(x, zero, many)", "Clip(x, L, H)", 0, 1.27),
    ("Clip(x, zero, Abs(one))", "Clip(Clip(x, zero, Abs(one)), L, H)", 0, 1.27),
    ("Sigmoid(x)", "Clip(Sigmoid(x), L, H)", 0, 1.27),
    ("Add(Relu(x), Sigmoid(x))", "Clip(Add(Relu(x), Sigmoid(x)), L, H)", 0, 1.27),
]


@pytest.mark.parametrize(("data", "clip", "low", "high"), CLIPPED)
def test_quantize_unsigned_clips_at_the_learned_range(lab, data, clip, low, high):
    model = lab.formula(pair(data), X, **CONSTANTS)
    lab.node(model, "QuantizeLinear").meta[QUANTIZER] = "a"
    lowered = lab.check(model, passes.quantize_unsigned, X)
    constants = lab.constants(lowered)
    names = {"L": "a/low", "H": "a/high", "Z": "a/zero_point"}
    expected = unsigned(clip)
    for key, name in names.items():
        expected = expected.replace(f" {key}", f" {name}")
    assert lab.results(lowered) == [expected]
    assert constants["a/low"] == np.float32(low)
    assert constants["a/high"] == pytest.approx(high, rel=1e-7)
    assert {constants["a/low"].dtype, constants["a/high"].dtype} == {np.dtype(np.float32)}
    assert (constants["a/zero_point"], constants["a/zero_point"].dtype) == (0, np.uint8)
    assert lab.node(lowered, "QuantizeLinear").outputs[0].dtype.name == "UINT8"
    added = [
        node for node in lowered.graph if node.op_type == "Clip" and node.inputs[1].name == "a/low"
    ]
    assert added[0].outputs[0].dtype.name == "FLOAT"
    assert list(added[0].outputs[0].shape) == [1, 8]


def test_quantize_unsigned_takes_a_scale_of_one_element(lab):
    lowered = lab.check(
        lab.formula(pair("Relu(x)", "s1", "z1"), X, **CONSTANTS), passes.quantize_unsigned, X
    )
    assert lab.ops(lowered) == {"Clip": 1, "QuantizeLinear": 1, "DequantizeLinear": 1}


def test_quantize_unsigned_names_clip_after_layer(lab):
    for data, layer in (
        ("Relu(x)", "layer_0"),
        ("Sigmoid(x)", "layer_1"),
        ("Clip(x, zero, Abs(one))", "layer_2"),
    ):
        lowered = passes.quantize_unsigned(lab.formula(pair(data), X, **CONSTANTS))
        assert lab.node(lowered, "Clip", -1).meta[LAYER] == layer


@pytest.mark.parametrize(
    "text",
    [
        pair("x"),
        pair("Neg(Relu(x))"),
        pair("Clip(x, minus)"),
        pair("Clip(x, , one)"),
        pair("Relu(x)", "s8", "z8"),
        pair("Relu(x)", "Abs(s)"),
        pair("w"),
        pair("Relu(x)", zero="u"),
        "Identity(QuantizeLinear(Relu(x), s, z))",
        "q = QuantizeLinear(Relu(x), s, z); DequantizeLinear(q, s, z); Identity(q)",
        "Relu(x)",
        "Add(Relu(x), s)",
    ],
)
def test_quantize_unsigned_leaves(lab, text):
    """And goes on behind it."""
    text = f"{text}; {pair('Relu(Exp(x))')}"
    model = lab.formula(text, X, **CONSTANTS)
    lowered = passes.quantize_unsigned(model)
    assert lab.results(lowered)[:-1] == lab.results(model)[:-1]
    assert lab.results(lowered)[-1].startswith("DequantizeLinear(QuantizeLinear(Clip(Exp(x),")


def test_quantize_unsigned_leaves_a_clamp_that_something_else_reads(lab):
    model = lab.formula(f"r = Relu(x); {pair('r')}; Exp(r)", X, **CONSTANTS)
    lowered = lab.check(model, passes.quantize_unsigned, X)
    assert lab.results(lowered)[0].startswith("DequantizeLinear(QuantizeLinear(Clip(Relu(x), ")


def test_quantize_unsigned_writes_every_reader(lab):
    model = lab.formula(
        "q = QuantizeLinear(Relu(x), s, z); DequantizeLinear(q, s, z); DequantizeLinear(q, s, z)",
        X,
        **CONSTANTS,
    )
    lowered = lab.check(model, passes.quantize_unsigned, X)
    zero_points = {node.inputs[2].name for node in lowered.graph if "Linear" in node.op_type}
    assert len(zero_points) == 1
    assert zero_points != {"z"}


@pytest.mark.parametrize(
    ("data", "left"),
    [
        ("Relu(x)", "x"),
        ("Relu(Relu(x))", "Relu(x)"),
        ("Clip(x)", "x"),
        ("Clip(x, zero)", "x"),
        ("Clip(x, zero, many)", "x"),
        ("Clip(x, minus, many)", "x"),
        ("Clip(x, , many)", "x"),
        ("Clip(x, half, many)", None),
        ("Clip(x, zero, one)", None),
        ("Clip(x, Abs(zero), many)", None),
        ("Clip(x, Abs(half))", None),
        ("Clip(x, zero, Abs(many))", None),
        ("Clip(x, zero, Abs(one))", None),
        ("Sigmoid(x)", None),
        ("x", None),
    ],
)
def test_remove_redundant_bounds_leaves_what_cuts_more_off(lab, data, left):
    """And goes on behind it."""
    text = f"{pair(data, zero='u')}; {pair('Relu(Exp(x))', zero='u')}"
    lowered = lab.check(lab.formula(text, X, **CONSTANTS), passes.remove_redundant_bounds, X)
    assert lab.results(lowered) == [pair(left or data, zero="u"), pair("Exp(x)", zero="u")]


@pytest.mark.parametrize(
    "text",
    [
        pair("Relu(x)"),
        pair("Relu(x)", "s8", "u8"),
        pair("Relu(x)", "Abs(s)", "u"),
        f"r = Relu(x); {pair('r', zero='u')}; Exp(r)",
        "Exp(Relu(x))",
    ],
)
def test_remove_redundant_bounds_leaves(lab, text):
    text = f"{text}; {pair('Relu(Exp(x))', zero='u')}"
    model = lab.formula(text, X, **CONSTANTS)
    lowered = lab.check(model, passes.remove_redundant_bounds, X)
    assert lab.results(lowered) == [*lab.results(model)[:-1], pair("Exp(x)", zero="u")]


def test_remove_redundant_bounds_takes_a_scale_of_one_element(lab):
    model = lab.formula(pair("Relu(x)", "s1", "u1"), X, **CONSTANTS)
    assert lab.results(passes.remove_redundant_bounds(model)) == [pair("x", "s1", "u1")]


def test_quantize_unsigned_keeps_one_type_per_concat(lab):
    mixed = f"Concat<axis = 0>({pair('Relu(x)')}, {pair('x')})"
    lowered = lab.check(lab.formula(mixed, X, **CONSTANTS), passes.quantize_unsigned, X)
    assert not any(node.op_type == "Clip" for node in lowered.graph)
    equal = f"Concat<axis = 0>({pair('Relu(x)')}, {pair('Sigmoid(x)')})"
    lowered = lab.check(lab.formula(equal, X, **CONSTANTS), passes.quantize_unsigned, X)
    assert sum(node.op_type == "Clip" for node in lowered.graph) == 2
