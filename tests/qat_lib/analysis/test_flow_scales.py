"""The scales and types of quantizers, as a flow compares them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.reads import Scale


def flow_of(g: GraphBuilder, output: str) -> Flow:
    g.output(output)
    return Flow.of(g.graph())


def scales_of(*pairs: tuple[Any, Any, dict[str, Any]], opset: int = 19) -> list[Scale]:
    """Return the scales of a weight's dequantizers, one per given scale.

    The weight is 3 x 4; each scale has a type and attributes.
    """
    g = GraphBuilder(opset=opset)
    x = g.input("x", (3, 4))
    for value, dtype, attributes in pairs:
        scale = g.const(value, dtype)
        zero = g.const(np.zeros(np.shape(value)), np.int8)
        weight = g.op(
            "DequantizeLinear", [g.const(np.ones((3, 4)), np.int8), scale, zero], **attributes
        )
        g.output(g.op("Add", [x, g.op("Cast", [weight], to=1)]))
    flow = Flow.of(g.graph())
    tracer = [flow.trace(node.input(0)) for node in flow.graph.nodes if node.op == "Cast"]
    return [read.scale for read in tracer if read.scale is not None]


def test_scales_are_compared_by_bits_type_and_axis() -> None:
    four = [0.5, 0.25, 1.0, 0.125]
    (two,) = scales_of(([0.5, 0.25], np.float32, {"axis": 0}))
    assert (two.axis, two.count) == (0, 2)
    one, same, half, other, columns, default, rows = scales_of(
        (0.5, np.float32, {}),
        (0.5, np.float32, {"axis": 0}),
        (0.5, np.float16, {}),
        (0.25, np.float32, {}),
        (four, np.float32, {"axis": -1}),
        (four, np.float32, {}),
        (four[:3], np.float32, {"axis": 0}),
    )
    assert one == same
    assert len({one, half, other, columns, default, rows}) == 6
    assert [each.count for each in (one, columns, rows)] == [1, 4, 3]
    assert [each.axis for each in (one, same, columns, default, rows)] == [None, None, -1, 1, 0]
    assert [each.largest for each in (one, half, columns, rows)] == [0.5, 0.5, 1.0, 1.0]
    assert [each.float_type for each in (one, half)] == ["float32", "float16"]


def test_scales_that_cannot_be_read_equal_nothing_but_themselves() -> None:
    g = GraphBuilder()
    x = g.input("x")
    first, second, none = g.input("s", ()), g.input("t", ()), g.const(np.zeros(0))
    zero = g.const(0, np.int8)
    for scale in (first, first, second, none):
        g.output(g.op("DequantizeLinear", [g.op("QuantizeLinear", [x, scale, zero]), scale, zero]))
    found = [read.scale for read in Flow.of(g.graph()).readers("x") if read.scale is not None]
    assert found[0] == found[1]
    assert len({*found}) == 3
    assert all(scale.largest != scale.largest for scale in found)
    assert [scale.legal for scale in found] == [True, True, True, False]


@pytest.mark.parametrize(
    ("dtype", "legal", "int8"),
    [
        ("int8", True, True),
        ("int8", False, False),
        ("uint8", True, True),
        ("int4", True, False),
        ("float8e4m3fn", True, False),
    ],
)
def test_int8_scales(dtype: str, legal: bool, int8: bool) -> None:
    assert Scale(key=(b"1", None, dtype), largest=1.0, legal=legal).is_int8 is int8


def types_of(quantized: Any, dequantized: Any, data: Any = None) -> str:
    """Return a pair's type, given by both nodes, one or none.

    With ``data`` there is no quantizer.
    """
    g = GraphBuilder(opset=21)
    scale = g.const(0.1)
    zeros = [[g.const(0, dtype)] if dtype is not None else [] for dtype in (quantized, dequantized)]
    q = g.input("x", dtype=data)
    if data is None:
        q = g.op("QuantizeLinear", [q, scale, *zeros[0]])
    read = flow_of(g, g.op("Tanh", [g.op("DequantizeLinear", [q, scale, *zeros[1]])])).readers("x")[
        0
    ]
    assert read.scale is not None
    return read.scale.key[2]


@pytest.mark.parametrize(
    ("quantized", "dequantized", "data", "expected"),
    [
        (np.int8, np.int8, None, "int8"),
        (None, None, None, "int8"),
        (None, np.int16, None, "int16"),
        (np.uint8, None, None, "uint8"),
        (None, None, np.uint8, "uint8"),
        (None, np.int16, np.int16, "int16"),
    ],
)
def test_pair_type_is_zero_point_type(
    quantized: Any, dequantized: Any, data: Any, expected: str
) -> None:
    assert types_of(quantized, dequantized, data) == expected


def test_moved_value_keeps_its_type() -> None:
    g = GraphBuilder()
    moved = g.op("Gather", [g.input("x", dtype=np.uint8), g.const([0], np.int64)])
    (read,) = flow_of(g, g.op("Tanh", [g.op("DequantizeLinear", [moved, g.const(0.1)])])).readers(
        moved
    )
    assert read.scale is not None
    assert read.scale.key[2] == "uint8"
