"""Each computed operator, with two different operands; each skipped kind."""

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.export import passes

A = np.float32([[1, 4, 9], [16, 25, 36]])
B = np.float32([[2, 2, 3], [4, 5, 8]])
CONSTANTS = {
    "a": A,
    "b": B,
    "row": A[:1],
    "column": np.float32([[[3], [5]]]),
    "i": np.asarray([1], np.int64),
    "ij": np.asarray([0, 2], np.int64),
    "target": np.asarray([3, 2], np.int64),
    "keep": np.asarray([0, -1, 1], np.int64),
    "empty": np.zeros((0, 3), np.float32),
    "none": np.asarray([0, 7], np.int64),
    "high": np.float32(20),
    "many": np.asarray([1, 2, 3], np.int64),
    "far": np.asarray([9], np.int64),
}
VALUES = {
    "Identity(a)": A,
    "Cast<to = 7>(a)": A.astype(np.int64),
    "Reshape(a, target)": A.reshape(3, 2),
    "Reshape(a, keep)": A.reshape(2, 3, 1),
    "Reshape<allowzero = 0>(a, keep)": A.reshape(2, 3, 1),
    "Reshape<allowzero = 1>(empty, none)": np.zeros((0, 7), np.float32),
    "Squeeze(column)": np.float32([3, 5]),
    "Squeeze(row, i2)": A[0],
    "Squeeze(column, ij)": np.float32([3, 5]),
    "Unsqueeze(a, i)": A[:, None],
    "Unsqueeze(a, ij)": A[None, :, None],
    "Transpose(a)": A.T,
    "Transpose<perm = [0, 2, 1]>(column)": np.float32([[[3, 5]]]),
    "Concat<axis = 0>(a, b)": np.concatenate([A, B]),
    "Concat<axis = 1>(b, a)": np.concatenate([B, A], axis=1),
    "Add(a, b)": A + B,
    "Sub(a, b)": A - B,
    "Mul(a, b)": A * B,
    "Sqrt(a)": np.sqrt(A),
    "Reciprocal(b)": 1 / B,
    "Neg(a)": -A,
    "Shape(column)": np.asarray([1, 2, 1], np.int64),
    "Shape<start = 1>(column)": np.asarray([2, 1], np.int64),
    "Div(a, b)": A / B,
    "Pow(b, b)": B**B,
    "Where(Less(a, b), a, b)": np.minimum(A, B),
    "Clip(a, , high)": np.minimum(A, 20),
    "Gather(a, i)": A[1:2],
    "Constant<value_float = 3.0>()": np.float32(3),
    "Constant<value_ints = [3, 4]>()": np.asarray([3, 4]),
}


@pytest.mark.parametrize("text", VALUES)
def test_fold_constants_computes(lab, text):
    model = lab.formula(
        f"Identity(Identity({text})); Relu(x)",
        {"x": np.float32([1])},
        **CONSTANTS,
        i2=np.asarray([0]),
    )
    lowered = passes.fold_constants(model)
    ((name, value),) = lab.constants(lowered).items()
    assert lab.results(lowered) == [f"Identity({name})", "Relu(x)"]
    assert value.dtype == VALUES[text].dtype
    assert value.shape == VALUES[text].shape
    np.testing.assert_allclose(value, VALUES[text], rtol=1e-6)


STAYS = [
    "Relu(x)",
    "Add(x, a)",
    "Add(a, x)",
    "QuantizeLinear(a, high)",
    "DequantizeLinear(q, high)",
    "RandomNormalLike(a)",
    "RandomUniformLike(a)",
    "Bernoulli(high)",
    "RandomNormal<shape = [2]>()",
    "RandomUniform<shape = [2]>()",
    "Gather(a, far)",  # out of bounds: what can't be computed stays
]


@pytest.mark.parametrize("text", STAYS)
def test_fold_constants_leaves(lab, text):
    """And computes what comes behind it."""
    model = lab.formula(f"Exp({text}); Exp(Neg(Neg(b)))", {"x": A}, q=np.int8([3]), **CONSTANTS)
    lowered = passes.fold_constants(model)
    assert lab.results(lowered)[0] == f"Exp({text})"
    assert lab.ops(lowered)["Neg"] == 0


def test_fold_constants_leaves_operators_of_several_outputs(lab):
    model = lab.build(
        "(float[1] x) => (float y, float z) { p, q = Split<axis = 0>(a)\n y = Exp(p)\n z = Add(q, x) }",
        a=A[:, 0],
    )
    assert lab.ops(passes.fold_constants(model)) == {"Split": 1, "Exp": 1, "Add": 1}


def test_fold_constants_leaves_operators_of_other_domains(lab):
    model = lab.formula("Exp(Neg(a)); Exp(Neg(b))", {}, **CONSTANTS)
    lab.node(model, "Neg").domain = "custom"
    lowered = passes.fold_constants(model)
    assert [(node.op_type, node.domain) for node in lowered.graph] == [
        ("Neg", "custom"),
        ("Exp", ""),
        ("Exp", ""),
    ]


def test_fold_constants_accepts_long_standard_domain_name(lab):
    model = lab.formula("Exp(Neg(a))", {}, **CONSTANTS)
    lab.node(model, "Neg").domain = "ai.onnx"
    assert lab.order(passes.fold_constants(model)) == ["Exp"]


def test_fold_constants_leaves_branches(lab):
    branch = "{} = g{} () => (float[2,3] o{}) {{ o{} = Neg({}) }}"
    branches = ", ".join(
        branch.format(key, name, name, name, name)
        for key, name in (("then_branch", "a"), ("else_branch", "b"))
    )
    model = lab.build(
        f"""(float[1] x) => (float y, float z) {{
            c = If(yes) <{branches}>
            y = Add(c, x)
            n = Neg(a)
            z = Add(n, x) }}""",
        a=A,
        b=B,
        yes=np.asarray(True),
    )
    assert lab.ops(passes.fold_constants(model)) == {"If": 1, "Add": 2}


def test_fold_constants_keeps_nodes_of_graph_outputs(lab):
    model = lab.formula("y = Neg(a); y; Exp(Neg(b)); Exp(y)", {}, **CONSTANTS)
    lowered = passes.fold_constants(model)
    assert lab.results(lowered)[0] == "Neg(a)"
    assert lab.ops(lowered) == {"Neg": 1, "Exp": 2}


LIMIT = 1 << 20


@pytest.mark.parametrize(
    ("size", "times", "stays"),
    [
        (1, LIMIT, False),
        (1, LIMIT + 1, True),
        (LIMIT, 1, False),
        (LIMIT, 2, False),
        (LIMIT, 3, True),
        (1, 100, False),
    ],
)
def test_fold_constants_writes_out_no_large_repetition(lab, size, times, stays):
    model = lab.formula(
        "Neg(Tile(c, n)); Exp(Neg(b))",
        {},
        c=np.ones(size, np.int8),
        n=np.asarray([times]),
        **CONSTANTS,
    )
    lowered = passes.fold_constants(model)
    assert lab.ops(lowered)["Tile"] == stays
    assert lab.ops(lowered)["Exp"] == 1


def test_fold_constants_keeps_the_tensors_names(lab):
    model = lab.build("(float[1] x) => (float y) { bias = Neg(a)\n y = Add(x, bias) }", a=A)
    assert list(passes.fold_constants(model).graph.initializers) == ["bias"]


@pytest.mark.parametrize(
    ("opset", "call"),
    [(12, "ReduceSum<axes = [0], keepdims = 0>(a)"), (13, "ReduceSum<keepdims = 0>(a, first)")],
)
def test_fold_constants_computes_by_the_models_operator_set(lab, opset, call):
    model = lab.formula(
        f"Add(x, {call})", {"x": A}, opset=opset, first=np.asarray([0]), **CONSTANTS
    )
    (value,) = lab.constants(passes.fold_constants(model)).values()
    np.testing.assert_array_equal(value, A.sum(axis=0))


@pytest.mark.parametrize("kind", [np.float16, np.float64, np.int32])
def test_fold_constants_keeps_the_type(lab, kind):
    x = {"x": A.astype(kind)}
    model = lab.formula(
        "Add(x, Mul(Sub(a, b), Transpose(c)))",
        x,
        a=A.astype(kind),
        b=B.astype(kind),
        c=A.T.astype(kind),
    )
    (value,) = lab.constants(passes.fold_constants(model)).values()
    assert value.dtype == kind
    assert ir.DataType.from_numpy(np.dtype(kind)) == model.graph.inputs[0].dtype
