"""Pieces of a layer normalization become one node; variants stay."""

import numpy as np
import pytest

from qat_lib.export import passes

PIECES = """mean = ReduceMean<axes = [-1]>(x)
centered = Sub(x, mean)
square = Mul(centered, centered)
variance = ReduceMean<axes = [-1]>(square)
padded = Add(variance, eps)
root = Sqrt(padded)
inverse = Reciprocal(root)
inv = Mul(inverse, gamma)
scaled = Mul(x, inv)
negative = Neg(mean)
shift = Mul(negative, inv)
offset = Add(shift, beta)
y = Add(scaled, offset)"""
EPSILON = np.float32(0.125)


def normalization(
    lab, *changes, text=PIECES, opset=17, shape="2,5,6", output="float y", **constants
):
    """Return the pieces with changes ``(old, new)``; each must apply."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    rng = np.random.default_rng(3)
    given = {"eps": EPSILON, "gamma": rng.normal(size=6), "beta": rng.normal(size=6)} | constants
    arrays = {
        key: np.asarray(x, x.dtype if x.dtype.kind == "i" else np.float32)
        for key, x in given.items()
        if key in text
    }
    return lab.build(f"(float[{shape}] x) => ({output}) {{ {text} }}", opset=opset, **arrays)


def lower(lab, model, shape=(2, 5, 6)):
    x = np.random.default_rng(4).uniform(1, 2, shape).astype(np.float32)
    return lab.check(model, passes.recover_layernorm, {"x": x}, rtol=1e-5, atol=1e-5)


def written(axis=-1, names="node_12/g, node_12/b", epsilon=0.125):
    return [f"LayerNormalization<axis = {axis}, epsilon = {epsilon}>(x, {names})"]


SAME = {
    "as Keras writes it": [],
    "axis counted from the front": [("[-1]", "[2]")],
    "axes kept, as said": [("<axes = [-1]>", "<axes = [-1], keepdims = 1>")],
    "epsilon first": [("Add(variance, eps)", "Add(eps, variance)")],
    "gamma first": [("Mul(inverse, gamma)", "Mul(gamma, inverse)")],
    "factor first": [("Mul(x, inv)", "Mul(inv, x)"), ("Mul(negative, inv)", "Mul(inv, negative)")],
    "beta first": [("Add(shift, beta)", "Add(beta, shift)")],
    "offset first": [("Add(scaled, offset)", "Add(offset, scaled)")],
}


@pytest.mark.parametrize("case", SAME)
def test_recover_layernorm_takes_operands_in_any_order(lab, case):
    model = normalization(lab, *SAME[case])
    lowered = lower(lab, model)
    assert lab.results(lowered) == written()
    found = lab.constants(lowered)
    assert found.keys() == {"node_12/g", "node_12/b"}
    np.testing.assert_array_equal(found["node_12/g"], lab.constants(model)["gamma"])
    np.testing.assert_array_equal(found["node_12/b"], lab.constants(model)["beta"])
    assert list(lab.node(lowered, "LayerNormalization").outputs[0].shape) == [2, 5, 6]


@pytest.mark.parametrize(
    ("gamma", "full"),
    [((6,), (6,)), ((1,), (6,)), ((), (6,)), ((1, 6), (6,)), ((1, 1, 6), (6,)), ((1, 1, 1), (6,))],
)
def test_recover_layernorm_broadcasts_the_parameters(lab, gamma, full):
    array = np.arange(1, 1 + np.prod(gamma), dtype=np.float32).reshape(gamma)
    model = normalization(lab, gamma=array, beta=-array)
    found = lab.constants(lower(lab, model))
    expected = np.broadcast_to(array.reshape(gamma[-1:]), full)
    np.testing.assert_array_equal(found["node_12/g"], expected)
    np.testing.assert_array_equal(found["node_12/b"], -expected)


@pytest.mark.parametrize("axes", ["[1, 2]", "[2, 1]", "[-1, -2]", "[1, -1]"])
@pytest.mark.parametrize("gamma", [(5, 6), (6,), (5, 1), (1, 5, 6)])
def test_recover_layernorm_over_two_axes(lab, axes, gamma):
    array = np.arange(1, 1 + np.prod(gamma), dtype=np.float32).reshape(gamma)
    lowered = lower(lab, normalization(lab, ("[-1]", axes), gamma=array, beta=-array))
    assert lab.results(lowered) == written(axis=-2)
    expected = np.broadcast_to(array[0] if array.ndim == 3 else array, (5, 6))
    np.testing.assert_array_equal(lab.constants(lowered)["node_12/g"], expected)


@pytest.mark.parametrize("axes", [[2], [-1], [1, 2], [2, 1], [0, 1, 2]])
def test_recover_layernorm_takes_axes_as_an_input(lab, axes):
    model = normalization(
        lab,
        ("<axes = [-1]>(x)", "(x, axes)"),
        ("<axes = [-1]>(square)", "(square, axes)"),
        opset=18,
        axes=np.asarray(axes),
    )
    assert lab.results(lower(lab, model)) == written(axis=-len(axes))


def test_recover_layernorm_without_gamma_and_beta(lab):
    model = normalization(
        lab,
        ("inv = Mul(inverse, gamma)\n", ""),
        ("inverse =", "inv ="),
        ("offset = Add(shift, beta)\n", ""),
        ("scaled, offset", "scaled, shift"),
    )
    lowered = lower(lab, model)
    assert lab.results(lowered) == written(names="node_10/g, node_10/b")
    assert lab.constants(lowered)["node_10/g"].tolist() == [1] * 6
    assert lab.constants(lowered)["node_10/b"].tolist() == [0] * 6


STAYS = {
    "not the last axis": [("[-1]", "[1]")],
    "the last axis and not the one before": [("[-1]", "[0, 2]")],
    "all axes": [("<axes = [-1]>", "")],
    "mean of other axes": [("ReduceMean<axes = [-1]>(x)", "ReduceMean<axes = [1, 2]>(x)")],
    "variance of other axes": [
        ("ReduceMean<axes = [-1]>(square)", "ReduceMean<axes = [1, 2]>(square)")
    ],
    "largest instead of mean": [("mean = ReduceMean", "mean = ReduceMax")],
    "largest instead of variance": [("variance = ReduceMean", "variance = ReduceMax")],
    "mean minus data": [("Sub(x, mean)", "Sub(mean, x)")],
    "sum instead of difference": [("Sub(x, mean)", "Add(x, mean)")],
    "difference to something else": [("Sub(x, mean)", "Sub(more, mean)")],
    "no square": [("Mul(centered, centered)", "Mul(centered, x)")],
    "no square, other operand": [("Mul(centered, centered)", "Mul(x, centered)")],
    "epsilon subtracted": [("Add(variance, eps)", "Sub(variance, eps)")],
    "epsilon computed": [("Add(variance, eps)", "Add(variance, variance)")],
    "epsilon for each element": [("Add(variance, eps)", "Add(variance, several)")],
    "no root": [("Sqrt(padded)", "Exp(padded)")],
    "no inverse": [("Reciprocal(root)", "Exp(root)")],
    "gamma added": [("Mul(inverse, gamma)", "Add(inverse, gamma)")],
    "gamma computed": [("Mul(inverse, gamma)", "Mul(inverse, x)")],
    "data not scaled": [("scaled = Mul(x, inv)", "scaled = Add(x, inv)")],
    "something else scaled": [("scaled = Mul(x, inv)", "scaled = Mul(centered, inv)")],
    "scaled by something else": [("scaled = Mul(x, inv)", "scaled = Mul(x, inverse)")],
    "mean not negated": [("Neg(mean)", "Abs(mean)")],
    "shift is a sum": [("shift = Mul(negative, inv)", "shift = Add(negative, inv)")],
    "shift of something else": [("shift = Mul(negative, inv)", "shift = Mul(mean, inv)")],
    "beta multiplied": [("Add(shift, beta)", "Mul(shift, beta)")],
    "beta computed": [("Add(shift, beta)", "Add(shift, x)")],
    "difference at the end": [("Add(scaled, offset)", "Sub(scaled, offset)")],
    "something else at the end": [("Add(scaled, offset)", "Add(x, offset)")],
    "twice at the end": [("Add(scaled, offset)", "Add(offset, offset)")],
    "mean read twice": [("negative = Neg(mean)", "negative = Neg(mean)\nother = Neg(mean)")],
}


@pytest.mark.parametrize("case", STAYS)
def test_recover_layernorm_leaves_what_is_something_else(lab, case):
    more = {"several": np.float32([1, 2, 3, 4, 5, 6]), "more": np.float32([3])}
    output = "float y, float other" if "other =" in str(STAYS[case]) else "float y"
    model = normalization(lab, *STAYS[case], output=output, **more)
    assert lab.results(lower(lab, model)) == lab.results(model)


def test_recover_layernorm_needs_means_that_keep_their_axes(lab):
    """Without keepdims, a square tensor's mean broadcasts along another axis."""
    model = normalization(lab, ("<axes = [-1]>", "<axes = [-1], keepdims = 0>"), shape="6,6")
    assert lab.results(lower(lab, model, (6, 6))) == lab.results(model)


def test_recover_layernorm_needs_constant_axes(lab):
    model = normalization(
        lab,
        ("mean = ReduceMean<axes = [-1]>(x)", "axes = Abs(axis)\nmean = ReduceMean(x, axes)"),
        ("<axes = [-1]>(square)", "(square, axes)"),
        opset=18,
        axis=np.asarray([2]),
        output="float[2,5,6] y",
    )
    assert lab.results(lower(lab, model)) == lab.results(model)


@pytest.mark.parametrize(
    ("shape", "axes", "found"),
    [
        ("b,5,6", "[1, 2]", True),
        ("b,n,6", "[1, 2]", False),
        ("b,n,6", "[2]", True),
        ("2,5,k", "[1, 2]", False),
    ],
)
def test_recover_layernorm_needs_known_sizes_of_the_axes(lab, shape, axes, found):
    model = normalization(lab, ("[-1]", axes), shape=shape)
    assert (lab.ops(lower(lab, model))["LayerNormalization"] == 1) == found


@pytest.mark.parametrize(("opset", "found"), [(16, False), (17, True)])
def test_recover_layernorm_needs_the_operator(lab, opset, found):
    model = normalization(lab, opset=opset)
    assert (lab.ops(lower(lab, model))["LayerNormalization"] == 1) == found


def test_recover_layernorm_needs_a_known_rank(lab):
    model = normalization(
        lab,
        ("ReduceMean<axes = [-1]>(x)", "ReduceMean<axes = [-1]>(r)"),
        ("mean = ", "r = Relu(x)\nmean = "),
        ("Sub(x,", "Sub(r,"),
        ("Mul(x,", "Mul(r,"),
    )
    assert lab.ops(lower(lab, model))["LayerNormalization"] == 1
    lab.node(model, "Relu").outputs[0].shape = None
    assert lab.ops(passes.recover_layernorm(model))["LayerNormalization"] == 0


def test_recover_layernorm_takes_float32_only(lab):
    model = normalization(lab)
    model.graph.inputs[0].dtype = type(model.graph.inputs[0].dtype).FLOAT16
    assert lab.ops(passes.recover_layernorm(model))["LayerNormalization"] == 0


def test_recover_layernorm_takes_one_behind_another(lab):
    """The mean that begins neither is in front of them."""
    names = {line.split(" = ")[0] for line in PIECES.splitlines()}
    second = PIECES
    for name in sorted(names, key=len, reverse=True):
        second = (
            second.replace(f"{name} =", f"{name}2 =")
            .replace(f"{name})", f"{name}2)")
            .replace(f"{name},", f"{name}2,")
            .replace(f"({name}2,", f"({name}2,")
        )
    second = second.replace("(x)", "(y)").replace("(x,", "(y,")
    model = normalization(
        lab,
        text=f"lone = ReduceMean<axes = [1]>(x)\n{PIECES}\n{second}",
        output="float y2, float lone",
    )
    lowered = lower(lab, model)
    assert lab.ops(lowered) == {"ReduceMean": 1, "LayerNormalization": 2}
