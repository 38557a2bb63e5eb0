"""Each Einsum with a weight becomes reshapes, a transpose and a product."""

import numpy as np
import pytest

from qat_lib.export import passes

X = {"x": (2, 3, 4), "u": (2, 3, 4, 5), "v": (2, 4)}
W = {
    "w": (4, 6),
    "wt": (6, 4),
    "heads": (4, 6, 7),
    "merge": (4, 5, 6),
    "merget": (5, 6, 4),
    "cube": (2, 4, 6),
}


def build(lab, rng, text, **more):
    arrays = {key: rng.normal(size=shape).astype(np.float32) for key, shape in {**X, **W}.items()}
    inputs = {
        key: arrays[key]
        for key in X
        if f"({key})" in text or f"({key}," in text or f" {key})" in text
    }
    constants = {key: arrays[key] for key in W} | more
    return lab.formula(text, inputs, **constants), inputs


def einsum(equation, *operands):
    return f'Einsum<equation = "{equation}">({", ".join(operands)})'


QDQ = "DequantizeLinear(QuantizeLinear(w, s, z), s, z)"
MERGED = [
    ("abc,cd->abd", "x", "w", "MatMul(x, w)", []),
    ("abc, cd -> abd", "x", "w", "MatMul(x, w)", []),
    ("...c,cd->...d", "x", "w", "MatMul(x, w)", []),
    ("...c,cd->...d", "v", "w", "MatMul(v, w)", []),
    ("a...c,cd->a...d", "u", "k5", "MatMul(u, k5)", []),
    ("ab,bc->ac", "v", "w", "MatMul(v, w)", []),
    ("abc,dc->abd", "x", "wt", "MatMul(x, Transpose<perm = [1, 0]>(wt))", []),
    ("abc,cd->abd", "x", QDQ, f"MatMul(x, {QDQ})", []),
    ("abc,cd->abd", "Relu(x)", "w", "MatMul(Relu(x), w)", []),
    (
        "abc,cde->abde",
        "x",
        "heads",
        "Reshape(MatMul(x, Reshape(heads, 0)), 1)",
        [[4, 42], [0, 0, 6, 7]],
    ),
    (
        "abc,cde->abed",
        "x",
        "heads",
        "Reshape(MatMul(x, Reshape(Transpose<perm = [0, 2, 1]>(heads), 0)), 1)",
        [[4, 42], [0, 0, 7, 6]],
    ),
    (
        "abde,dec->abc",
        "u",
        "merge",
        "MatMul(Reshape(u, 1), Reshape(merge, 0))",
        [[20, 6], [0, 0, 20]],
    ),
    (
        "abde,ecd->abc",
        "u",
        "merget",
        "MatMul(Reshape(u, 1), Reshape(Transpose<perm = [2, 0, 1]>(merget), 0))",
        [[20, 6], [0, 0, 20]],
    ),
    (
        "abde,defg->abfg",
        "u",
        "both",
        "Reshape(MatMul(Reshape(u, 1), Reshape(both, 0)), 2)",
        [[20, 42], [0, 0, 20], [0, 0, 6, 7]],
    ),
]


@pytest.mark.parametrize(("equation", "data", "weight", "result", "targets"), MERGED)
def test_merge_einsum(lab, rng, equation, data, weight, result, targets):
    more = {
        "k5": rng.normal(size=(5, 6)).astype(np.float32),
        "both": rng.normal(size=(4, 5, 6, 7)).astype(np.float32),
        "s": np.float32(0.02),
        "z": np.int8(0),
    }
    model, inputs = build(lab, rng, einsum(equation, data, weight), **more)
    lowered = lab.check(model, passes.merge_einsum, inputs, rtol=1e-5, atol=1e-4)
    names = [name for name in lab.constants(lowered) if name.endswith("shape") or "shape_" in name]
    for index, name in enumerate(names):
        result = result.replace(f", {index})", f", {name})")
    assert lab.results(lowered) == [result]
    assert [lab.constants(lowered)[name].tolist() for name in names] == targets
    # The shapes said are those that ONNX infers: check_model compares them.
    assert all(
        value.shape is not None and value.dtype is not None
        for node in lowered.graph
        for value in node.outputs
    )


STAYS = [
    einsum("abc,bcd->abd", "x", "three"),  # the weight has an axis of the batch
    einsum("abc,cd->adb", "x", "w"),
    einsum("abc,cd->bad", "x", "w"),
    einsum("bac,cd->abd", "x", "w"),
    einsum("abc,cd->abdc", "x", "w"),
    einsum("abc,cd", "x", "w"),
    einsum("abc,cd->ab", "x", "w"),  # a sum over an axis of the weight
    einsum("abc,cc->ab", "x", "square"),
    einsum("abc,cc->abc", "x", "square"),
    einsum("abc,de->abcde", "x", "w"),  # an outer product
    einsum("abc,abc->", "x", "same"),
    einsum("abc,cab->abc", "x", "back"),
    einsum("ab,abc->c", "v", "cube2"),  # no axis is left
    einsum("abc,...c->ab...", "x", "wt"),
    einsum("abc->acb", "x"),
    einsum("abc,cd,de->abe", "x", "w", "wt"),
    einsum("abc,cd->abd", "x", "Relu(w)"),
    einsum("abc,cd->abd", "x", "DequantizeLinear(QuantizeLinear(Relu(w), s, z), s, z)"),
    einsum("abc,acd->abd", "x", "Expand(x, shape)"),
]


@pytest.mark.parametrize("text", STAYS)
def test_merge_einsum_leaves(lab, rng, text):
    """And goes on behind it."""
    more = {
        key: rng.normal(size=shape).astype(np.float32)
        for key, shape in {
            "three": (3, 4, 5),
            "square": (4, 4),
            "same": (2, 3, 4),
            "back": (4, 2, 3),
            "cube2": (2, 4, 5),
        }.items()
    }
    more |= {"s": np.float32(0.02), "z": np.int8(0), "shape": np.asarray([2, 3, 4])}
    behind = einsum("abc,cd->abd", "Exp(x)", "w")
    inputs = {
        "x": rng.normal(size=X["x"]).astype(np.float32),
        "v": rng.normal(size=X["v"]).astype(np.float32),
    }
    constants = {key: rng.normal(size=shape).astype(np.float32) for key, shape in W.items()}
    model = lab.formula(f"{text}; {behind}; Neg(v)", inputs, **constants, **more)
    lowered = passes.merge_einsum(model)
    assert lab.results(lowered) == [text, "MatMul(Exp(x), w)", "Neg(v)"]


def test_merge_einsum_needs_the_rank_of_the_data(lab, rng):
    model, _ = build(lab, rng, einsum("abc,cd->abd", "Relu(x)", "w"))
    lab.node(model, "Relu").outputs[0].shape = None
    assert lab.ops(passes.merge_einsum(model))["Einsum"] == 1


@pytest.mark.parametrize(
    ("equation", "weight", "shape"),
    [("abc,cde->abde", "heads", [2, None, 6, 7]), ("abc,cd->abd", "w", [2, None, 6])],
)
def test_merge_einsum_keeps_open_axes(lab, rng, equation, weight, shape):
    model, _ = build(lab, rng, einsum(equation, "Relu(x)", weight))
    relu = lab.node(model, "Relu").outputs[0]
    relu.shape = type(relu.shape)([2, None, 4])
    result = passes.merge_einsum(model).graph.outputs[0]
    assert [dim if isinstance(dim, int) else None for dim in result.shape] == shape


def test_merge_einsum_needs_rank_of_data(lab, rng):
    """Equations that do not fit their data, which no checked file has."""
    for equation in ("ab,bc->ac", "abcd,de->abce"):
        model, _ = build(lab, rng, einsum("abc,cd->abd", "x", "w"))
        attributes = model.graph[0].attributes
        attributes["equation"] = type(attributes["equation"])(
            "equation", attributes["equation"].type, equation
        )
        assert lab.ops(passes.merge_einsum(model)) == {"Einsum": 1}
