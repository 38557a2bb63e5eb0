"""Weighted operators: operands, precision, axes as seen by the operator, multiply-accumulates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.weighted import Weight, WeightedOp, find_weighted


def find(g: GraphBuilder, output: str) -> WeightedOp:
    """Return the only weighted operator of a graph."""
    g.output(output)
    (op,) = find_weighted(Flow.of(g.graph())).values()
    return op


def weight_of(op: WeightedOp) -> Weight:
    assert op.weight is not None
    return op.weight


def product(
    op: str,
    shapes: tuple[Any, Any],
    *,
    constant: int = 1,
    quantized: tuple[bool, bool] = (True, True),
    **options: Any,
) -> WeightedOp:
    """``op`` of two operands; the one at ``constant`` is a weight.

    With -1 neither is.
    """
    g = GraphBuilder()
    operands = []
    for position, shape in enumerate(shapes):
        if position != constant:
            x = g.input(f"x{position}", shape)
            operands.append(g.qdq(x) if quantized[position] else x)
        else:
            operands.append(g.weight(shape, None, quantized=quantized[position]))
    return find(g, g.op(op, operands, f"layer/{op}", **options))


@pytest.mark.parametrize(
    ("op", "shapes", "options", "macs"),
    [
        ("Conv", ((2, 16, 9, 7), (8, 16, 3, 3)), {"strides": [2, 2]}, 8 * 16 * 9 * 2 * 4 * 3),
        ("Conv", (("batch", 16, 9, 7), (8, 16, 3, 3)), {"strides": [2, 2]}, 8 * 16 * 9 * 4 * 3),
        ("Conv", ((2, 16, 9, 7), (8, 4, 3, 3)), {"group": 4}, 8 * 4 * 9 * 2 * 7 * 5),
        (
            "ConvTranspose",
            ((2, 16, 4, 5), (16, 8, 3, 3)),
            {"strides": [2, 2]},
            16 * 8 * 9 * 2 * 4 * 5,
        ),
        ("MatMul", ((2, 3, 32), (32, 5)), {}, 2 * 3 * 5 * 32),
        ("MatMul", (("batch", 3, 32), (32, 5)), {}, 3 * 5 * 32),
        ("Gemm", ((4, 32), (32, 5)), {}, 4 * 5 * 32),
        ("Gemm", ((4, 32), (5, 32)), {"transB": 1}, 4 * 5 * 32),
        ("Gemm", ((32, 4), (32, 5)), {"transA": 1}, 4 * 5 * 32),
    ],
)
def test_macs(op: str, shapes: tuple[Any, Any], options: dict[str, Any], macs: int) -> None:
    assert product(op, shapes, **options).macs == macs


def test_macs_with_computed_weight_are_unknown() -> None:
    assert product("Conv", ((1, 16, 8, 8), (8, 16, 3, 3)), constant=-1).macs == 0
    assert product("MatMul", ((4, 32), (32, 5)), constant=-1).macs == 4 * 5 * 32


@pytest.mark.parametrize(
    ("op", "shapes", "constant", "options", "axis"),
    [
        ("Conv", ((1, 16, 8, 8), (8, 16, 3, 3)), 1, {}, 0),
        ("ConvTranspose", ((1, 16, 8, 8), (16, 8, 3, 3)), 1, {}, 1),
        ("MatMul", ((4, 32), (32, 5)), 1, {}, 1),
        ("MatMul", ((2, 4, 32), (2, 32, 5)), 1, {}, 2),
        ("MatMul", ((4, 32), (32, 5)), 0, {}, 0),
        ("MatMul", ((2, 4, 32), (2, 32, 5)), 0, {}, 1),
        ("MatMul", ((4, 32), (32,)), 1, {}, None),
        ("Gemm", ((4, 32), (32, 5)), 1, {}, 1),
        ("Gemm", ((4, 32), (5, 32)), 1, {"transB": 1}, 0),
        ("Gemm", ((32, 4), (32, 5)), 1, {"transA": 1}, 1),
        ("Gemm", ((4, 32), (32, 5)), 0, {}, 0),
        ("Gemm", ((32, 4), (32, 5)), 0, {"transA": 1}, 1),
        ("Gemm", ((4, 32), (5, 32)), 0, {"transB": 1}, 0),
    ],
)
def test_axis_of_the_output_channels(
    op: str, shapes: tuple[Any, Any], constant: int, options: dict[str, Any], axis: int | None
) -> None:
    found = product(op, shapes, constant=constant, **options)
    assert weight_of(found).out_axis == axis
    assert weight_of(found).shape == shapes[constant]
    assert [read.position for read in found.activations] == [1 - constant]


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
@pytest.mark.parametrize("constant", [1, -1], ids=["weight", "two activations"])
@pytest.mark.parametrize("quantized", [(True, True), (True, False), (False, True), (False, False)])
def test_precision(op: str, constant: int, quantized: tuple[bool, bool]) -> None:
    shapes = ((1, 16, 8, 8), (16, 16, 1, 1)) if op.startswith("Conv") else ((16, 16), (16, 16))
    found = product(op, shapes, constant=constant, quantized=quantized)
    expected = "int8" if all(quantized) else "mixed" if any(quantized) else "float"
    if expected == "int8" and constant == -1 and op.startswith("Conv"):
        expected = "mixed"  # no INT8 kernel convolves with a weight that is computed
    assert found.precision == expected
    assert len(found.activations) == (1 if constant == 1 else 2)


def test_a_bias_is_no_operand() -> None:
    g = GraphBuilder()
    weight = g.weight((8, 16, 1, 1))
    op = find(g, g.op("Conv", [g.qdq(g.input()), weight, g.input("bias", (8,))]))
    assert (op.precision, len(op.activations), weight_of(op).shape) == ("int8", 1, (8, 16, 1, 1))


@pytest.mark.parametrize(
    ("op", "channels", "shape", "group", "depthwise"),
    [
        ("Conv", 4, (4, 1, 3, 3), 4, True),
        ("Conv", 4, (8, 1, 3, 3), 4, True),
        ("Conv", 2, (2, 1, 3, 3), 2, True),
        ("Conv", 4, (4, 2, 3, 3), 2, False),
        ("Conv", 1, (4, 1, 3, 3), 1, False),
        ("ConvTranspose", 4, (4, 1, 3, 3), 4, False),
    ],
)
def test_depthwise(
    op: str, channels: int, shape: tuple[int, ...], group: int, depthwise: bool
) -> None:
    found = product(op, ((1, channels, 8, 8), shape), group=group)
    assert (found.group, found.depthwise) == (group, depthwise)


def test_a_convolution_without_group_has_one() -> None:
    assert product("Conv", ((1, 4, 8, 8), (4, 4, 3, 3))).group == 1
    assert not product("Conv", ((1, 4, 8, 8), (4, 1, 3, 3)), constant=-1, group=4).depthwise


@pytest.mark.parametrize(
    ("axis", "perm", "seen"),
    [
        (0, [1, 0], 1),
        (1, [1, 0], 0),
        (-1, [1, 0], 0),
        (-2, [1, 0], 1),
        (0, None, 1),
        (1, None, 0),
        (0, [0, 1], 0),
    ],
)
def test_axis_through_a_transpose(axis: int, perm: list[int] | None, seen: int) -> None:
    g = GraphBuilder()
    stored = g.dq(g.const(np.ones((16, 16)), np.int8), np.full(16, 0.1), axis=axis)
    weight = g.op("Transpose", [stored], **({} if perm is None else {"perm": perm}))
    found = weight_of(find(g, g.op("MatMul", [g.qdq(g.input(shape=(4, 16))), weight])))
    assert (found.axis, [node.op for node in found.layout_ops]) == (seen, ["Transpose"])


def test_axis_through_two_transposes() -> None:
    """Axis 0 becomes axis 2, and that becomes axis 1."""
    g = GraphBuilder()
    stored = g.dq(g.const(np.ones((5, 2, 16)), np.int8), np.full(5, 0.1), axis=0)
    weight = g.op("Transpose", [g.op("Transpose", [stored], perm=[1, 2, 0])], perm=[0, 2, 1])
    found = weight_of(find(g, g.op("MatMul", [g.qdq(g.input(shape=(2, 4, 5))), weight])))
    assert (found.axis, found.out_axis, found.shape) == (1, 2, (2, 5, 16))


@pytest.mark.parametrize("op", ["Reshape", "Unsqueeze", "Squeeze", "Flatten"])
def test_a_reshape_hides_the_axis(op: str) -> None:
    """The layout operator's inputs: first the weight, then shape or axes."""
    g = GraphBuilder()
    shape = {"Squeeze": (1, 16, 8), "Reshape": (8, 16)}.get(op, (16, 8))
    second = {"Reshape": [16, 8], "Unsqueeze": [0], "Squeeze": [0]}.get(op)
    stored = g.dq(g.const(np.ones(shape), np.int8), np.full(shape[1], 0.1), axis=1)
    weight = g.op(op, [stored] if second is None else [stored, g.const(second, np.int64)])
    weight = g.op("Transpose", [weight], perm=[0, 2, 1] if op == "Unsqueeze" else [1, 0])
    found = weight_of(find(g, g.op("MatMul", [g.qdq(g.input(shape=(4, 8))), weight])))
    assert found.axis is None
    assert found.scale is not None
    assert found.scale.count == shape[1]
    assert [node.op for node in found.layout_ops] == [op, "Transpose"]


def test_a_float_weight_has_no_layout_operators_to_report() -> None:
    g = GraphBuilder()
    weight = g.op("Transpose", [g.weight((8, 16), quantized=False)], perm=[1, 0])
    found = weight_of(find(g, g.op("MatMul", [g.qdq(g.input(shape=(4, 16))), weight])))
    assert (found.scale, found.layout_ops, found.axis) == (None, (), None)


def test_a_weight_behind_another_operator_is_floating_point() -> None:
    g = GraphBuilder()
    weight = g.op("Neg", [g.weight((16, 8))])
    found = find(g, g.op("MatMul", [g.qdq(g.input(shape=(4, 16))), weight]))
    assert (found.precision, weight_of(found).scale) == ("mixed", None)


def unknown(g: GraphBuilder, x: str) -> str:
    """What a foreign operator makes, of a shape that nobody knows."""
    return g.op("Foreign", [x])


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MatMul"])
def test_nothing_is_counted_where_a_shape_is_unknown(op: str) -> None:
    shapes = ((1, 16, 8, 8), (16, 16, 1, 1)) if op.startswith("Conv") else ((16, 16), (16, 16))
    g = GraphBuilder()
    x = unknown(g, g.input(shape=shapes[0]))
    assert find(g, g.op(op, [g.qdq(x), g.weight(shapes[1], None)])).macs == 0
    g = GraphBuilder()
    stored = g.dq(unknown(g, g.const(np.ones(shapes[1]), np.int8)))
    found = find(g, g.op(op, [g.qdq(g.input(shape=shapes[0])), stored]))
    assert (found.macs, weight_of(found).shape) == (0, None)
    assert found.precision == "int8"


@pytest.mark.parametrize(("group", "expected"), [(0, 1), (-2, 1), (3, 3)])
def test_a_convolution_has_one_group_at_least(group: int, expected: int) -> None:
    assert product("Conv", ((1, 6, 8, 8), (6, 2, 3, 3)), group=group).group == expected


def test_a_weight_of_one_dimension_is_no_depthwise_kernel() -> None:
    assert not product("Conv", ((1, 4, 8, 8), (4,)), group=4).depthwise


def test_layout_operator_without_a_tensor_hides_the_weight() -> None:
    g = GraphBuilder()
    weight = g.op("Reshape", ["", g.const([16, 8], np.int64)])
    found = find(g, g.op("MatMul", [g.qdq(g.input(shape=(4, 16))), weight]))
    assert (weight_of(found).scale, weight_of(found).layout_ops) == (None, ())
