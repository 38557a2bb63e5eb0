"""Canonical names of nodes, tensors, and constants by purpose."""

import numpy as np
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import LAYER, QUANTIZER
from qat_lib.export.passes.names import owner

X = {"x": np.ones((1, 2, 4, 4), np.float32)}


def test_owner_is_the_quantizer_then_the_layer(lab):
    model = lab.formula(
        "DequantizeLinear(QuantizeLinear(Relu(x), s, z), s, z)", X, s=np.float32(1), z=np.int8(0)
    )
    relu, quantize, dequantize = model.graph
    for node in (relu, quantize):
        node.meta[QUANTIZER] = "q"
    assert [owner(node) for node in (relu, quantize, dequantize)] == ["layer_0", "q", "layer_2"]


def test_owner_is_else_the_layer_of_a_neighbour(lab):
    model = lab.formula("Exp(Relu(Neg(x))); Abs(x)", X)
    for node, layer in zip(model.graph, ("before", None, "after", None), strict=True):
        node.meta.clear()
        node.meta.update({LAYER: layer} if layer else {})
    neg, relu, exp, lone = model.graph
    assert owner(relu) == "before"
    del neg.meta[LAYER]
    assert owner(relu) == "after"
    del exp.meta[LAYER]
    assert owner(relu) == owner(lone) == "graph"


def named(lab, model, inputs=X):
    """Name layers after their operator, so that names collide.

    Return nodes and constants.
    """
    for node in model.graph:
        node.meta[LAYER] = "layer"
    lowered = lab.check(model, passes.name_canonically, inputs)
    return [node.name for node in lowered.graph], lab.constants(lowered), lowered


def test_nodes_of_one_name_are_numbered(lab):
    nodes, _, lowered = named(lab, lab.formula("Relu(Relu(Relu(Exp(x))))", X))
    assert nodes == ["layer/Exp", "layer/Relu", "layer/Relu_1", "layer/Relu_2"]
    tensors = [node.outputs[0].name for node in lowered.graph]
    assert tensors == ["layer/Exp:0", "layer/Relu:0", "layer/Relu_1:0", "y0"]


def test_inputs_and_outputs_keep_their_names(lab):
    model = lab.build('("float[2]" x) => (float y) { y = Relu(x) }'.replace('"', ""))
    model.graph.inputs[0].name, model.graph.outputs[0].name = "layer/Exp:0", "layer/Relu"
    nodes, _, lowered = named(lab, model, {"layer/Exp:0": np.float32([1, 2])})
    assert nodes == ["layer/Relu_1"]  # names of nodes do not repeat those of outputs
    assert [value.name for value in (*lowered.graph.inputs, *lowered.graph.outputs)] == [
        "layer/Exp:0",
        "layer/Relu",
    ]


def test_tensors_do_not_take_an_inputs_name(lab):
    model = lab.build(
        "(float[2] x) => (float y) { a = Exp(x)\n y = Add(a, c) }", c=np.float32([1, 2])
    )
    model.graph.inputs[0].name = "layer/Exp:0"
    _, _, lowered = named(lab, model, {"layer/Exp:0": np.float32([1, 2])})
    assert lowered.graph[0].outputs[0].name == "layer/Exp:0_1"


def test_outputs_of_one_node_are_numbered(lab):
    model = lab.build("(float[4] x) => (float y) { a, b = Split<axis = 0>(x)\n y = Add(a, b) }")
    _, _, lowered = named(lab, model, {"x": np.float32([1, 2, 3, 4])})
    assert [value.name for value in lowered.graph[0].outputs] == ["layer/Split:0", "layer/Split:1"]


IMAGE = np.ones((2, 2, 1, 1), np.float32)
VECTOR = np.float32([1, 2])
CONSTANTS = {
    "w": IMAGE,
    "b": VECTOR,
    "g": 2 * VECTOR,
    "m": 3 * VECTOR,
    "v": 4 * VECTOR,
    "k": np.ones((2, 2), np.float32),
    "s": np.float32(1),
    "z": np.int8(0),
    "i": np.int8([[[[1]], [[2]]], [[[3]], [[4]]]]),
    "p": np.asarray([0, 0, 0, 1, 0, 0, 0, 1]),
    "ps": np.asarray([1, 1]),
    "pa": np.asarray([3]),
    "t": np.asarray([-1, 2]),
    "top": np.float32(6),
    "low": np.float32(0),
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Conv(x, w, b)", {"weight": "w", "bias": "b"}),
        ("ConvTranspose(x, w, b)", {"weight": "w", "bias": "b"}),
        ("Gemm(Reshape(x, t), k, b)", {"shape": "t", "weight": "k", "bias": "b"}),
        ("MatMul(Reshape(x, t), k)", {"shape": "t", "weight": "k"}),
        ("MatMul(k, Reshape(x, r))", {"input": "k", "shape": "r"}),
        (
            "BatchNormalization(x, g, b, m, v)",
            {"gamma": "g", "beta": "b", "mean": "m", "variance": "v"},
        ),
        ("Clip(x, low, top)", {"min": "low", "max": "top"}),
        ("Clip(x, , top)", {"max": "top"}),
        ("Pad(x, p, top)", {"pads": "p", "value": "top"}),
        ("Pad(x, ps, top, pa)", {"pads": "ps", "value": "top", "axes": "pa"}),
        ("DequantizeLinear(QuantizeLinear(x, s, z), s, z)", {"scale": "s", "zero_point": "z"}),
        ("Conv(x, DequantizeLinear(i, s, z))", {"integers": "i", "scale": "s", "zero_point": "z"}),
        (
            "Conv(x, DequantizeLinear(QuantizeLinear(w, s, z), s, z))",
            {"weight": "w", "scale": "s", "zero_point": "z"},
        ),
        ("Add(x, top)", {"Add/constant_1": "top"}),
        ("Add(top, x)", {"Add/constant_0": "top"}),
        ("Mul(top, Add(x, top))", {"Add/constant_1": "top"}),
        ("Mul(low, Mul(x, top))", {"Mul/constant_1": "top", "Mul_1/constant_0": "low"}),
        ("Conv(Conv(x, w), w2)", {"weight": "w", "weight_1": "w2"}),
        ("Add(x, c)", {"Add/constant_1": "c"}),
    ],
)
def test_constants_are_named_by_what_they_are_for(lab, text, names):
    more = {"w2": 2 * IMAGE, "r": np.asarray([2, -1]), "c": np.ones((1, 2, 4, 4), np.float32)}
    model = lab.formula(text, X, opset=18, **CONSTANTS, **more)
    _, constants, _ = named(lab, model)
    assert constants.keys() == {f"layer/{name}" for name in names}
    for name, before in names.items():
        np.testing.assert_array_equal(constants[f"layer/{name}"], lab.constants(model)[before])


def test_names_may_change_places(lab):
    """A constant may have the name that another one gets."""
    model = lab.build(
        '(float[1,2,4,4] x) => (float y) { a = Conv(x, "layer/bias", "layer/weight")\n y = Relu(a) }'.replace(
            '"layer/', ""
        ).replace('"', ""),
        bias=IMAGE,
        weight=VECTOR,
    )
    for name in ("bias", "weight"):
        model.graph.initializers[name].name = f"layer/{name}"
    _, constants, _ = named(lab, model)
    assert constants["layer/weight"].shape == (2, 2, 1, 1)
    assert constants["layer/bias"].shape == (2,)


def test_a_constant_that_is_an_output_keeps_its_name(lab):
    model = lab.build(
        "(float[1,2,4,4] x) => (float[1] c, float y) { y = Add(x, c) }", c=np.float32([1])
    )
    _, constants, lowered = named(lab, model)
    assert list(constants) == ["c"]
    assert lowered.graph.outputs[0].name == "c"


def test_a_constant_that_is_an_input_keeps_its_name(lab):
    """A default value of an input."""
    model = lab.formula("Add(x, c)", {**X, "c": np.float32([1])}, d=np.float32([1]))
    proto_value = model.graph.inputs[1]
    proto_value.const_value = (
        lab.formula("Add(x, d)", X, d=np.float32([1])).graph.initializers["d"].const_value
    )
    model.graph.register_initializer(proto_value)
    _, constants, _ = named(lab, model)
    assert list(constants) == ["c"]


def test_a_constant_that_nothing_reads_goes(lab):
    model = lab.build("(float[2] x) => (float y) { y = Relu(x) }", c=np.float32([1]))
    assert named(lab, model, {"x": np.float32([1, 2])})[1] == {}
