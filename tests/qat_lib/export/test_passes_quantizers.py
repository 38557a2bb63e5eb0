"""Quantizer markers become activation ranges, INT8 weights or float weights."""

import numpy as np
import pytest

from qat_lib.errors import ExportError
from qat_lib.export import passes
from qat_lib.export.graph import FACTOR, LEARNED, ORIGINAL, QUANTIZER, TENSOR
from qat_lib.export.passes.activation_ranges import find_range, quantizer_pairs
from qat_lib.export.passes.quantized_weights import scale_axis
from qat_lib.export.ranges import LearnedRange

X = {"x": np.float32([[1, -2, 3]])}
UNSET = {"one": np.float32(1), "zero": np.int8(0)}


def learned(name="a", amax=2.54, **options):
    return LearnedRange(name=name, amax=np.asarray(amax, np.float32), **options)


def marked(lab, text, *names, inputs=X, **constants):
    """Return the graph with the quantizers' names at its pairs, in order."""
    model = lab.formula(text, inputs, **UNSET, **constants)
    given = iter(names)
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            node.meta[QUANTIZER] = node.inputs[0].producer().meta[QUANTIZER] = next(given)
    return model


def pair(data):
    return f"DequantizeLinear(QuantizeLinear({data}, one, zero), one, zero)"


@pytest.mark.parametrize("name", ["a", "a_1"])
def test_find_range_tells_like_named_quantizers_apart(name):
    assert find_range(name, {key: learned(key) for key in ("a", "a_1")}).name == name


@pytest.mark.parametrize("name", ["b", "a_1", "a_", ""])
def test_find_range_refuses_a_name_of_no_quantizer(name):
    with pytest.raises(ExportError, match=f"Received: '{name}'"):
        find_range(name, {"a": learned()})


def test_find_range_names_some_that_there_are():
    ranges = {f"q{index}": learned() for index in range(9)}
    with pytest.raises(
        ExportError, match=r"has \['q0', 'q1', 'q2', 'q3', 'q4', 'q5', 'q6', 'q7'\]"
    ):
        find_range("x", ranges)


def test_quantizer_pairs_are_those_with_a_name(lab):
    text = f"Exp({pair('Relu(x)')}); Neg({pair('x')}); {pair('Abs(x)')}; DequantizeLinear(i, one, zero)"
    model = lab.formula(text, X, **UNSET, i=np.int8([1]))
    dequantizers = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    for node in (*model.graph, dequantizers[3]):
        node.meta[QUANTIZER] = "q"
    del dequantizers[1].meta[QUANTIZER]
    assert quantizer_pairs(model) == [
        (node.inputs[0].producer(), node) for node in (dequantizers[0], dequantizers[2])
    ]


@pytest.mark.parametrize(
    ("unsigned", "kind", "steps"), [(False, "INT8", 127), (True, "UINT8", 255)]
)
def test_activation_ranges_are_written_into_both_nodes(lab, unsigned, kind, steps):
    model = marked(lab, f"Neg({pair('x')})", "a")
    lowered = passes.write_activation_ranges(model, {"a": learned("a", [2.54], unsigned=unsigned)})
    assert lab.results(lowered) == [
        "Neg(DequantizeLinear<axis = 1>(QuantizeLinear<axis = 1>(x, a/scale, a/zero_point), a/scale, a/zero_point))"
    ]
    constants = lab.constants(lowered)
    assert constants["a/scale"] == np.float32(2.54) / np.float32(steps)
    assert constants["a/scale"].shape == constants["a/zero_point"].shape == ()
    assert constants["a/zero_point"].dtype == np.dtype(kind.lower())
    assert lab.node(lowered, "QuantizeLinear").outputs[0].dtype.name == kind
    assert {node.meta.get(QUANTIZER) for node in lowered.graph} == {"a", None}


def test_activation_ranges_leave_weights_and_go_on_behind_them(lab):
    model = marked(lab, f"{pair('w')}; {pair('x')}", "w", "a", w=np.float32([1, 2]))
    lowered = passes.write_activation_ranges(model, {"a": learned()})
    assert lab.results(lowered)[0] == pair("w")
    assert "a/scale" in lab.results(lowered)[1]


def test_activation_ranges_merge_equal_pairs(lab):
    """Three of one quantizer, one of another, one on another tensor.

    The last one is of the first quantizer again.
    """
    text = "; ".join(
        [
            "r = Relu(x)",
            *[f"Neg({pair('r')})"] * 2,
            pair("r"),
            f"Neg({pair('r')})",
            f"Neg({pair('x')})",
        ]
    )
    model = marked(lab, text, "a", "a", "a", "b", "a")
    lab.node(model, "DequantizeLinear", 2).outputs[0].meta[TENSOR] = "tensor"
    lowered = passes.write_activation_ranges(model, {"a": learned(), "b": learned("b", 1)})
    assert lab.ops(lowered) == {"Relu": 1, "QuantizeLinear": 3, "DequantizeLinear": 3, "Neg": 4}
    numbers = "{1}/scale, {1}/zero_point"
    kept = f"DequantizeLinear<axis = 1>(QuantizeLinear<axis = 1>({{0}}, {numbers}), {numbers})"
    first, second, third, other, again = lab.results(lowered)
    assert first == second == f"Neg({third})"
    assert third == kept.format("Relu(x)", "a")
    assert other == f"Neg({kept.format('Relu(x)', 'b')})"
    assert again == f"Neg({kept.format('x', 'a')})"
    # Of one quantizer the constants are there once.
    assert set(lab.constants(lowered)) == {"a/scale", "a/zero_point", "b/scale", "b/zero_point"}
    assert lowered.graph.outputs[2].meta[TENSOR] == "tensor"


@pytest.mark.parametrize(
    ("amax", "count"), [([1, 2], 2), ([1, 1], 2), ([[1], [2], [3]], 3), ([], 0)]
)
def test_activation_ranges_refuse_several(lab, amax, count):
    with pytest.raises(ExportError, match=f"'a' quantizes. Received: {count}"):
        passes.write_activation_ranges(marked(lab, pair("x"), "a"), {"a": learned("a", amax)})


@pytest.mark.parametrize(
    ("scales", "axis", "found"),
    [
        (np.full((2, 3), 0.5), 0, 0.5),
        (np.asarray(0.5), 0, 0.5),
        (np.broadcast_to([[0.5], [0.25]], (2, 3)), 0, [0.5, 0.25]),
        (np.broadcast_to([0.5, 0.25, 0.125], (2, 3)), 1, [0.5, 0.25, 0.125]),
        (np.broadcast_to([0.5, 0.25, 0.5], (2, 3)), 1, [0.5, 0.25, 0.5]),
        (np.broadcast_to(np.reshape([1, 2, 3.0], (1, 3, 1)), (2, 3, 4)), 1, [1, 2, 3]),
        (np.broadcast_to(np.reshape([1, 2, 3, 3.0], (1, 1, 4)), (2, 3, 4)), 2, [1, 2, 3, 3]),
        (np.asarray([0.5, 0.25]), 0, [0.5, 0.25]),
    ],
)
def test_scale_axis_is_the_one_along_which_they_differ(scales, axis, found):
    where, values = scale_axis(scales, "w")
    assert where == axis
    assert values.dtype == np.float32
    assert values.tolist() == found


def test_scale_axis_refuses_two():
    with pytest.raises(ExportError, match="scales of 'w' to vary along one axis"):
        scale_axis(np.float32([[1, 2], [3, 4]]), "w")
    with pytest.raises(ExportError, match="along one axis"):
        scale_axis(np.float32([[1, 1], [1, 2]]), "w")


W = np.float32(np.arange(24).reshape(2, 3, 4) - 11)
MOVES = [
    ("{}", lambda x: x),
    ("Identity({})", lambda x: x),
    ("Transpose<perm = [2, 0, 1]>({})", lambda x: x.transpose(2, 0, 1)),
    ("Transpose({})", lambda x: x.transpose()),
    ("Reshape({}, r)", lambda x: x.reshape(2, 12)),
    ("Reshape({}, r0)", lambda x: x.reshape(2, 3, 2, 2)),
    ("Reshape({}, r1)", lambda x: x.reshape(1, 24)),
    ("Flatten({})", lambda x: x.reshape(2, 12)),
    ("Flatten<axis = 1>({})", lambda x: x.reshape(2, 12)),
    ("Flatten<axis = 2>({})", lambda x: x.reshape(6, 4)),
    ("Flatten<axis = 0>({})", lambda x: x.reshape(1, 24)),
    ("Unsqueeze({}, first)", lambda x: x[None]),
    ("Unsqueeze({}, both)", lambda x: x[None, ..., None]),
    ("Squeeze(Unsqueeze({}, both))", lambda x: x),
    ("Squeeze(Unsqueeze({}, both), last)", lambda x: x[None]),
    ("Reshape(Transpose<perm = [2, 0, 1]>({}), r24)", lambda x: x.transpose(2, 0, 1).reshape(4, 6)),
]
SHAPES = {
    "r": np.asarray([2, -1]),
    "r0": np.asarray([0, 0, 2, 2]),
    "r1": np.asarray([1, -1]),
    "r24": np.asarray([0, 6]),
    "first": np.asarray([0]),
    "both": np.asarray([0, 4]),
    "last": np.asarray([4]),
}


# Behind these two scales would lie along no one axis.
SPLITS = ("r1)", "r24)", "axis = 0", "axis = 2")
WHOLE = [(move, expected, np.float32(12.7)) for move, expected in MOVES]
HALVES = [
    (move, expected, np.float32([[[12.7]], [[25.4]]]))
    for move, expected in MOVES
    if not any(split in move for split in SPLITS)
]


@pytest.mark.parametrize(("move", "expected", "amax"), WHOLE + HALVES)
def test_weights_go_through_moves_of_constant_arguments(lab, move, expected, amax):
    """One scale, then two scales along an axis that is kept."""
    model = marked(lab, f"Neg({move.format(pair('w'))}); Relu(x)", "q", w=W, **SHAPES)
    range_ = learned("q", amax, narrow=True)
    lowered = passes.store_quantized_weights(model, {"q": range_})
    assert lab.order(lowered) == ["DequantizeLinear", "Neg", "Relu"]
    node = lab.node(lowered, "DequantizeLinear")
    integers, scale, zero_point = (np.asarray(value.const_value) for value in node.inputs)
    np.testing.assert_array_equal(integers, expected(range_.integers(W)))
    assert integers.dtype == zero_point.dtype == np.int8
    assert zero_point.shape == scale.shape == (() if np.size(amax) == 1 else (2,))
    assert not zero_point.any()
    np.testing.assert_array_equal(scale, range_.scale.ravel() if scale.ndim else range_.scale)
    np.testing.assert_array_equal(node.meta[LEARNED], scale)
    np.testing.assert_array_equal(node.meta[ORIGINAL], integers)
    assert node.meta[QUANTIZER] == "q"
    assert list(node.outputs[0].shape) == list(integers.shape)
    fake = expected(range_.integers(W).astype(np.float32) * range_.scale)
    np.testing.assert_array_equal(lab.run(lowered, **X)[0], -fake)


def test_weights_stop_at_a_move_of_computed_arguments(lab):
    model = marked(
        lab,
        f"Neg(Reshape({pair('w')}, Abs(r))); Neg(Unsqueeze({pair('w')}, Abs(first))); Relu(x)",
        "q",
        "q",
        w=W,
        **SHAPES,
    )
    lowered = passes.store_quantized_weights(model, {"q": learned("q", 12.7)})
    assert lab.ops(lowered) == {
        "Abs": 2,
        "DequantizeLinear": 2,
        "Reshape": 1,
        "Unsqueeze": 1,
        "Neg": 2,
        "Relu": 1,
    }


def test_weights_of_several_readers_share_what_is_equal(lab):
    """Three layouts, one of them twice, and a double reader.

    The double reader takes the weight at two inputs.
    """
    text = f"d = {pair('v')}; Neg(d); Transpose(d); Neg(Transpose(d)); Exp(Transpose(d)); Mul(d, d); MatMul(x, d)"
    v = np.float32(np.arange(9).reshape(3, 3))
    model = marked(lab, text, "q", v=v)
    lowered = passes.store_quantized_weights(model, {"q": learned("q", [12.7, 25.4, 38.1])})
    results = lab.results(lowered)
    kept = "DequantizeLinear<axis = 1>(q/integers, q/scale"
    moved = "DequantizeLinear<axis = 0>(q/integers_1, q/scale"
    assert results[0].startswith(f"Neg({kept}")
    assert results[2].startswith(f"Neg({moved}")
    assert results[3].startswith(f"Exp({moved}")
    assert results[4].count(kept) == 2
    assert results[5].startswith(f"MatMul(x, {kept}")
    assert sorted(name for name in lab.constants(lowered) if "integers" in name) == [
        "q/integers",
        "q/integers_1",
    ]


def test_computed_weights_are_skipped(lab):
    model = marked(lab, f"{pair('Abs(w)')}; Neg({pair('w')})", "a", "q", w=W)
    lowered = passes.store_quantized_weights(model, {"q": learned("q", 12.7)})
    assert lab.results(lowered)[0] == pair("Abs(w)")
    assert lab.ops(lowered)["QuantizeLinear"] == 1


def test_weights_are_not_unsigned(lab):
    model = marked(lab, f"Neg({pair('w')})", "q", w=W)
    with pytest.raises(ExportError, match="'q' with unsigned=True"):
        passes.store_quantized_weights(model, {"q": learned("q", 12.7, unsigned=True)})


@pytest.mark.parametrize(
    ("scale", "attribute", "expected"),
    [
        (np.float32(0.5), "", [[0.5, 1, 1.5], [2, 2.5, 3]]),
        (np.float32([0.5, 2]), "<axis = 0>", [[0.5, 1, 1.5], [8, 10, 12]]),
        (np.float32([0.5, 2, 1]), "<axis = 1>", [[0.5, 4, 3], [2, 10, 6]]),
        (np.float32([0.5, 2, 1]), "", [[0.5, 4, 3], [2, 10, 6]]),
    ],
)
def test_float_weights_are_integers_times_scales(lab, scale, attribute, expected):
    integers = np.int8([[1, 2, 3], [4, 5, 6]])
    zero = np.zeros(scale.shape, np.int8)
    model = lab.formula(
        f"MatMul(y, DequantizeLinear{attribute}(i, s, z))",
        {"y": np.float32([[1, -2]])},
        i=integers,
        s=scale,
        z=zero,
    )
    node = lab.node(model, "DequantizeLinear")
    extra = {QUANTIZER: "q", FACTOR: np.float32([1]), LEARNED: scale, ORIGINAL: integers}
    node.meta.update(extra)
    lowered = lab.check(model, passes.store_float_weights, {"y": np.float32([[1, -2]])})
    axis = attribute or "<axis = 1>"
    assert lab.results(lowered) == [
        f"MatMul(y, DequantizeLinear{attribute}(QuantizeLinear{axis}(q/weight, s, z), s, z))"
    ]
    weight = lab.constants(lowered)["q/weight"]
    assert weight.dtype == np.float32
    assert weight.tolist() == expected
    quantize = lab.node(lowered, "QuantizeLinear")
    assert {key: quantize.meta.get(key) is not None for key in extra} == {
        QUANTIZER: True,
        FACTOR: True,
        LEARNED: True,
        ORIGINAL: False,
    }
    assert quantize.outputs[0].dtype.name == "INT8"
    assert list(quantize.outputs[0].shape) == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "DequantizeLinear(QuantizeLinear(x, one, zero), one, zero)",
        "DequantizeLinear(i, Abs(one), zero)",
        "Add(one, x)",
        "Relu(x)",
    ],
)
def test_float_weights_skip_what_is_no_weight(lab, text):
    model = lab.formula(
        f"{text}; DequantizeLinear(j, one, zero); Relu(x)",
        X,
        i=np.int8([1]),
        j=np.int8([2]),
        **UNSET,
    )
    lowered = passes.store_float_weights(model)
    assert lab.results(lowered) == [
        text,
        "DequantizeLinear(QuantizeLinear<axis = 1>(weight/weight, one, zero), one, zero)",
        "Relu(x)",
    ]
    assert lab.node(lowered, "QuantizeLinear", -1).meta.keys() == {"keras_layer"}
