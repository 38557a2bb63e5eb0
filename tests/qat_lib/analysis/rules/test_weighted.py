"""Which weighted layers a rule covers, and which not.

The cases are the graph's input, unknown shapes and other types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_graphs import GraphBuilder

from qat_lib.analysis.engine import predict_engine
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.weighted import check_weighted

Build = Callable[[GraphBuilder, str], str]


def findings(g: GraphBuilder, code: str = "") -> list[Finding]:
    return [
        found for found in check_weighted(predict_engine(g.graph())) if code in ("", found.code)
    ]


def messages(g: GraphBuilder, code: str = "") -> list[str]:
    return [found.message for found in findings(g, code)]


def branch(g: GraphBuilder, x: str) -> str:
    """An If of two graphs that copy ``x``."""
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Identity", [x], ["y"])], "body", [], [y])
    return g.op(
        "If", [g.input("chosen", (), bool)], "choose/If", then_branch=body, else_branch=body
    )


def test_v27_of_control_flow() -> None:
    g = GraphBuilder()
    g.output(g.op("Softmax", [branch(g, g.op("Tanh", [g.input()]))]))
    (found,) = findings(g)
    assert (found.code, found.node, found.severity) == ("V27", "choose/If", "warning")
    assert "inside of this If" in found.message


def test_layers_of_other_types_are_left_out() -> None:
    g = GraphBuilder(opset=21)
    stored = g.const(np.ones((32, 64)), ml_dtypes.int4)
    weight = g.op(
        "DequantizeLinear", [stored, g.const(np.full((2, 64), 0.1))], axis=0, block_size=16
    )
    y = g.op("MatMul", [g.input(shape=(32, 32)), weight], "first/MatMul")
    g.output(g.dense(y, 64, 16, name="second", quantized=False))
    assert [(found.code, found.keras_layer) for found in findings(g)] == [("V11", "second")]


@pytest.mark.parametrize(
    ("quantized", "expected"),
    [
        ((True, True), []),
        ((True, False), ["V10"]),
        ((False, True), ["V10"]),
        ((False, False), ["V11"]),
    ],
)
def test_operands_of_a_product(quantized: tuple[bool, bool], expected: list[str]) -> None:
    g = GraphBuilder()
    operands = [g.input(name, (32, 32)) for name in "ab"]
    read = [g.qdq(x) if q else x for x, q in zip(operands, quantized, strict=True)]
    g.output(g.op("MatMul", read, "product/MatMul"))
    assert [found.code for found in findings(g)] == expected


@pytest.mark.parametrize(
    ("op", "axis", "out"),
    [
        ("Conv", 0, None),
        ("Conv", 1, 0),
        ("Conv", 2, 0),
        ("ConvTranspose", 1, None),
        ("ConvTranspose", 0, 1),
    ],
)
def test_v04_names_both_axes(op: str, axis: int, out: int | None) -> None:
    g = GraphBuilder()
    x = g.op("Tanh", [g.input()])
    g.output(g.op(op, [g.qdq(x), g.weight((16, 16, 3, 3), axis)], f"quant_layer/{op}"))
    found = messages(g, "V04")
    assert len(found) == (out is not None)
    assert all(
        f"along axis {axis}; the output channels of {op} are axis {out}." in text for text in found
    )


def test_v04_needs_axes_that_are_known() -> None:
    """One scale has no axis, a Reshape hides it, vectors lack channels."""
    for weight, shape in (
        (lambda g: g.weight((32, 16), None), (2, 32)),
        (lambda g: g.weight((32,)), (2, 32)),
    ):
        g = GraphBuilder()
        g.output(g.op("MatMul", [g.qdq(g.input(shape=shape)), weight(g)], "quant_dense/MatMul"))
        assert findings(g, "V04") == []
    g = GraphBuilder()
    weight_of_rows = g.op("Reshape", [g.weight((16, 32), 0), g.const([32, 16], np.int64)])
    g.output(g.op("MatMul", [g.qdq(g.input(shape=(2, 32))), weight_of_rows], "quant_dense/MatMul"))
    assert [found.code for found in findings(g)] == ["V12"]


def test_v12_names_what_lies_between() -> None:
    g = GraphBuilder()
    weight = g.op(
        "Reshape", [g.op("Transpose", [g.weight((32, 16), None)]), g.const([32, 16], np.int64)]
    )
    g.output(g.op("MatMul", [g.qdq(g.input(shape=(2, 32))), weight], "quant_dense/MatMul"))
    (found,) = messages(g, "V12")
    assert found.startswith("Transpose, Reshape between the weight's DQ and 'dense'")


def convolution(
    shape: Any, weight: Any, *, known: bool = True, op: str = "Conv", **options: Any
) -> GraphBuilder:
    """A quantized convolution behind a Tanh.

    Its weight's shape is known or comes from a foreign operator.
    """
    g = GraphBuilder()
    x = g.op("Tanh", [g.input(shape=shape)])
    kernel = g.weight(weight, None)
    if not known:
        stored = g.op("Foreign", [g.const(np.ones(weight), np.int8)])
        kernel = g.dq(stored, 0.02)
    g.output(g.op(op, [g.qdq(x), kernel], f"quant_conv/{op}", **options))
    return g


@pytest.mark.parametrize(
    ("shape", "weight", "options", "found"),
    [
        ((1, 15, 8), (15, 15, 3), {}, True),
        ((1, 16, 8, 8), (16, 16, 3, 1), {}, False),
        ((1, 32, 8, 8), (24, 32, 3, 1), {}, False),
        ((1, 24, 8, 8), (32, 24, 3, 1), {}, False),
        ((1, 32, 8, 8), (15, 32, 3, 3), {}, False),
        ((1, 32, 8, 8), (15, 32, 3, 1), {}, True),
        ((1, 8, 8, 8), (24, 8, 3, 3), {}, False),
        ((1, 12, 8, 8), (24, 12, 3, 3), {}, False),
        ((1, 24, 8, 8), (12, 24, 3, 3), {}, False),
        ((1, 12, 8, 8), (20, 12, 3, 3), {}, True),
        ((1, 12, 8, 8), (8, 12, 3, 3), {}, True),
        ((1, 32, 8, 8), (32, 16, 1, 1), {"group": 2}, False),
        ((1, 16, 8, 8), (16, 8, 3, 3), {"group": 2}, False),
        ((1, 16, 8, 8), (16, 8, 3, 5), {"group": 2}, False),
        ((1, 16, 8, 8), (16, 8, 3, 2), {"group": 2}, True),
        ((1, 16, 8, 8), (20, 8, 3, 3), {"group": 2}, True),
    ],
)
def test_v24_channels_and_kernels(
    shape: Any, weight: Any, options: dict[str, Any], found: bool
) -> None:
    assert bool(findings(convolution(shape, weight, **options), "V24")) is found
    assert findings(convolution(shape, weight, known=False, **options), "V24") == []
    assert findings(convolution(shape, weight, op="ConvTranspose", **options), "V24") == []


@pytest.mark.parametrize(("channels", "found"), [(3, False), (4, False), (15, False)])
def test_v24_takes_any_input_channels(channels: int, found: bool) -> None:
    """A first layer of 8 filters is accepted, a middle one isn't."""
    first = GraphBuilder()
    first.output(first.conv(first.qdq(first.input(shape=(1, channels, 8, 8))), channels, 8))
    assert bool(findings(first, "V24")) is found
    assert findings(convolution((1, channels, 8, 8), (8, channels, 3, 3)), "V24") != []


def test_non_kernel_weight_gives_v27_at_most() -> None:
    for options in ({}, {"group": 2}):
        codes = {found.code for found in findings(convolution((1, 9, 8, 8), (9, 9), **options))}
        assert codes <= {"V27"}


def product(
    left: Any, right: Any, *, op: str = "MatMul", weight: bool = True, **options: Any
) -> GraphBuilder:
    g = GraphBuilder()
    second = g.weight(right, None) if weight else g.qdq(g.input("b", right))
    g.output(g.op(op, [g.qdq(g.input("a", left)), second], f"quant_dense/{op}", **options))
    return g


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (product((4, 16), (16,)), ""),
        (product(None, (16, 8)), ""),
        (product((4, 8), None, weight=False), ""),
        (product((8, 16), (16, 16), op="Gemm"), ""),
        (product((8, 16), (8, 16), op="Gemm", transA=1), "has 8 inner products"),
        (product((16, 8), (16, 16), op="Gemm", transA=1), ""),
        (product((4, 15), (15, 15)), "has 15 inner products"),
        (product((1, 4, 16), (16, 16)), ""),
        (product((4, 1, 16), (16, 16)), ""),
        (product((1, "rows", 16), (16, 16)), ""),
        (product((2, 1, 16), (2, 16, 16), weight=False), "multiplies one row"),
        (product((2, 2, 16), (2, 16, 16), weight=False), ""),
        (product((2, "rows", 16), (2, 16, 16), weight=False), ""),
        (product((16,), (16, 16)), "multiplies one row"),
        (product(("rows", "inner"), ("inner", "columns"), weight=False), ""),
    ],
)
def test_v24_of_products(graph: GraphBuilder, text: str) -> None:
    found = messages(graph, "V24")
    assert len(found) == bool(text)
    assert all(text in message for message in found)


@pytest.mark.parametrize(
    ("shape", "weight", "options", "channels"),
    [
        ((1, 24, 8), (24, 24, 3), {}, "24"),
        ((1, 40, 8, 8), (24, 40, 3, 3), {}, "40 and 24"),
        ((1, 48, 8, 8), (40, 24, 3, 3), {"group": 2}, "40"),
        ((1, 40, 8, 8), (48, 20, 3, 3), {"group": 2}, "40"),
        ((1, 40, 8, 8), (40, 1, 3, 3), {"group": 40}, ""),
    ],
)
def test_v25_channels(shape: Any, weight: Any, options: dict[str, Any], channels: str) -> None:
    found = messages(convolution(shape, weight, **options), "V25")
    assert len(found) == bool(channels)
    assert all(f"has {channels} channels" in message for message in found)
    assert findings(convolution(shape, weight, known=False, **options), "V25") == []


MOVES: dict[str, tuple[Build, bool]] = {
    "nothing": (lambda g, x: x, True),
    "a cast": (lambda g, x: g.op("Cast", [x], to=TensorProto.FLOAT), True),
    "a reshape": (lambda g, x: g.op("Reshape", [x, g.const([1, 24, 4, 16], np.int64)]), True),
    "a quantizer": (
        lambda g, x: g.op("Reshape", [g.qdq(x), g.const([1, 24, 4, 16], np.int64)]),
        True,
    ),
    "a cast and a transpose": (
        lambda g, x: g.op("Transpose", [g.op("Cast", [x], to=1)], perm=[0, 1, 3, 2]),
        True,
    ),
    "a layer": (lambda g, x: g.op("Tanh", [x]), False),
    "a reshape of a layer": (
        lambda g, x: g.op("Reshape", [g.op("Tanh", [x]), g.const([1, 24, 4, 16], np.int64)]),
        False,
    ),
    "a layer of a reshape": (
        lambda g, x: g.op("Tanh", [g.op("Reshape", [x, g.const([1, 24, 4, 16], np.int64)])]),
        False,
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_v25_leaves_the_channels_of_the_input_out(name: str) -> None:
    build, is_input = MOVES[name]
    g = GraphBuilder()
    g.output(g.conv(g.qdq(build(g, g.input(shape=(1, 24, 8, 8)))), 24, 40))
    (found,) = messages(g, "V25")
    assert ("has 40 channels" in found) is is_input
    assert ("has 24 and 40 channels" in found) is not is_input


@pytest.mark.parametrize(
    ("op", "dimensions"), [("Conv", 1), ("Conv", 3), ("ConvTranspose", 1), ("ConvTranspose", 3)]
)
def test_v27_counts_the_dimensions(op: str, dimensions: int) -> None:
    (found,) = messages(
        convolution((1, 16, *[8] * dimensions), (16, 16, *[3] * dimensions), op=op), "V27"
    )
    assert f"over {dimensions} dimensions" in found


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_v27_needs_known_number_of_dimensions(op: str) -> None:
    assert findings(convolution((1, 16, 8), (16, 16, 3), op=op, known=False), "V27") == []
    assert findings(convolution((1, 16, 8, 8), (16, 16, 3, 3), op=op), "V27") == []
    assert findings(product((2, 32), (32, 32)), "V27") == []


def test_a_float_layer_is_too_small_for_nothing() -> None:
    """What runs in floating point is not called slow in INT8."""
    g = GraphBuilder()
    g.output(g.conv(g.input(shape=(1, 3, 8, 8)), 3, 5, quantized=False))
    assert [found.code for found in findings(g)] == ["V11"]
