"""Findings on a residual Add: the operand with missing or excess Q.

The operand is named.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from onnx_graphs import GraphBuilder, image

from qat_lib.analysis.engine import predict_engine
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.residual import check_residual

Build = Callable[[GraphBuilder, str], str]


def findings(g: GraphBuilder) -> list[Finding]:
    return list(check_residual(predict_engine(g.graph())))


def int8(g: GraphBuilder, x: str) -> str:
    return g.conv(g.qdq(x), 16, 16, name="next")


def output(g: GraphBuilder, x: str) -> str:
    return x


def pool(g: GraphBuilder, x: str) -> str:
    return g.op("GlobalAveragePool", [x])


def softmax(g: GraphBuilder, x: str) -> str:
    return g.op("Softmax", [x])


def block(
    *ends: Build, shortcut: bool, branch: bool = False, quantized: bool = True, shared: bool = False
) -> GraphBuilder:
    """A Tanh added to a convolution.

    ``shortcut`` and ``branch`` say which operand has a Q.
    """
    g = GraphBuilder()
    x = g.op("Tanh", [g.input(shape=(1, 16, 16, 16))], "tanh/Tanh")
    read = g.qdq(x)
    y = g.conv(g.qdq(g.input("z", (1, 16, 16, 16))), 16, 16, name="branch", quantized=quantized)
    total = g.op("Add", [read if shortcut else x, g.qdq(y) if branch else y], "add/Add")
    g.output(*(end(g, total) for end in ends))
    if shared:
        g.output(g.conv(read, 16, 16, name="beside"))
    return g


@pytest.mark.parametrize(
    ("graph", "expected", "text"),
    [
        (block(int8, shortcut=True), [], ""),
        (
            block(output, shortcut=False),
            [("V15", "F2", "info")],
            "Quantize the residual input of 'add', which is the",
        ),
        (block(int8, shortcut=False), [("V15", "F2", "warning")], "which is the output of 'tanh'."),
        (block(int8, softmax, shortcut=False), [("V15", "F2", "info")], "output of 'tanh'"),
        (block(int8, pool, shortcut=False), [("V15", "F2", "warning")], "output of 'tanh'"),
        (block(pool, softmax, shortcut=False), [("V15", "F2", "info")], "output of 'tanh'"),
        (
            block(output, shortcut=True),
            [("V16", "F3", "warning")],
            "the readers of 'add'",
        ),
        (
            block(output, shortcut=True, shared=True),
            [("V16", "F3", "info")],
            "the readers of 'add'",
        ),
        (
            block(pool, shortcut=True, shared=True),
            [("V16", "F3", "warning")],
            "the readers of 'add'",
        ),
        (
            block(int8, shortcut=True, branch=True),
            [("V17", "F4", "warning")],
            "Remove the Q on the output of 'branch'",
        ),
        (block(int8, shortcut=False, branch=True), [], ""),
        (
            block(int8, shortcut=True, quantized=False),
            [("V18", "F1", "warning")],
            "Quantize 'branch', or remove",
        ),
        (block(int8, shortcut=False, quantized=False), [], ""),
    ],
)
def test_check_residual(
    graph: GraphBuilder, expected: list[tuple[str, str, str]], text: str
) -> None:
    found = findings(graph)
    assert [(each.code, each.rule, each.severity) for each in found] == expected
    for each in found:
        assert (each.node, each.keras_layer) == ("add/Add", "add")
        assert text in each.advice


def test_residual_from_input_has_no_layer() -> None:
    g = GraphBuilder()
    g.output(int8(g, g.op("Add", [g.input("r", (1, 16, 16, 16)), image(g)], "add/Add")))
    (found,) = findings(g)
    assert found.advice == "Quantize the residual input of 'add'."


def test_add_in_an_attention_is_no_residual() -> None:
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (4, 32, 32))) for name in "qkv")
    masked = g.op(
        "Add", [g.op("MatMul", [q, k], "scores/MatMul"), g.input("mask", (4, 32, 32))], "mask/Add"
    )
    values = g.op("MatMul", [g.qdq(g.op("Softmax", [masked])), v], "values/MatMul")
    g.output(g.dense(g.qdq(g.op("Add", [values, g.input("r", (4, 32, 32))], "add/Add")), 32, 32))
    assert [(each.code, each.node) for each in findings(g)] == [("V15", "add/Add")]
