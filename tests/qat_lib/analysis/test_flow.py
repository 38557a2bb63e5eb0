"""Scales of quantized tensors, as fusion compares them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_graphs import GraphBuilder

from qat_lib.analysis.flow import Flow, Tracer
from qat_lib.analysis.reads import Scale
from qat_lib.errors import ExportError


def test_scale_is_equal_when_its_bits_are() -> None:
    """Displayed value and compute type do not distinguish a scale."""
    key = (b"\0\0\0\x3f", None, "int8")
    other = Scale(key=key, largest=0.25, count=3, axis=1, float_type="float16", legal=False)
    assert Scale(key=key, largest=0.5) == other
    assert (Scale(key=key, largest=0.5).count, Scale(key=key, largest=0.5).is_int8) == (1, True)
    assert Scale(key=key, largest=0.5) != Scale(key=(b"\0\0\0\x40", None, "int8"), largest=0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scale_says_what_its_dequantizer_gives(dtype: type) -> None:
    """Of a weight, whose values are integers."""
    g = GraphBuilder(opset=19, dtype=dtype)
    g.output(g.op("MatMul", [g.input(shape=(4, 16)), g.weight((16, 8), 1)], "dense/MatMul"))
    flow = Flow.of(g.graph())
    read = flow.input(flow.operators[0], 1)
    assert read is not None
    assert read.scale is not None
    assert (read.scale.float_type, read.scale.count, read.scale.axis) == (
        np.dtype(dtype).name,
        8,
        1,
    )
    assert read.scale.is_int8


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_dequantizer_without_zero_point_has_its_quantizers_type(dtype: type) -> None:
    g = GraphBuilder()
    scale = g.const(0.1)
    q = g.op("QuantizeLinear", [g.input(), scale, g.const(0, dtype)])
    g.output(g.op("Tanh", [g.op("DequantizeLinear", [q, scale])]))
    (read,) = Flow.of(g.graph()).readers("x")
    assert [scale.key[2] for scale in read.explicit] == [np.dtype(dtype).name]
    assert len(read.quantizers) == 2


def flow_of(g: GraphBuilder, *outputs: str) -> Flow:
    g.output(*outputs)
    return Flow.of(g.graph())


def test_operators_are_what_can_become_a_kernel() -> None:
    g = GraphBuilder()
    x = g.input()
    dropped = g.op("Dropout", [g.op("Identity", [g.qdq(x)])], outputs=2)
    weight = g.op("Transpose", [g.op("Mul", [g.const(np.ones((16, 16))), g.const(2.0)])])
    y = g.op("MatMul", [g.op("Flatten", [dropped]), weight])
    assert [node.op for node in flow_of(g, y).operators] == ["Flatten", "MatMul"]


@pytest.mark.parametrize(
    ("inputs", "op"),
    [(["x"], "QuantizeLinear"), (["x", ""], "DequantizeLinear"), (["x", "", "given"], "Dropout")],
)
def test_malformed_quantizer_stays_operator(inputs: list[str], op: str) -> None:
    g = GraphBuilder()
    g.input("x")
    g.input("given", (), bool)
    assert [node.op for node in flow_of(g, g.op("Tanh", [g.op(op, inputs)])).operators] == [
        op,
        "Tanh",
    ]


def test_a_copy_of_nothing_is_followed_to_itself() -> None:
    g = GraphBuilder()
    copy = g.op("Identity", [""])
    assert flow_of(g, g.op("Add", [g.input("x"), copy])).trace(copy).value == copy


@pytest.mark.parametrize("second", ["", "ratio"])
def test_a_dropout_copies_its_first_input(second: str) -> None:
    g = GraphBuilder()
    g.const(0.5, name="ratio")
    copy = g.op("Dropout", [g.input("x"), second])
    flow = flow_of(g, g.op("Tanh", [copy]))
    assert flow.trace(copy).value == "x"
    assert [node.op for node in flow.operators] == ["Tanh"]


@pytest.mark.parametrize("mask_is_read", [True, False])
def test_a_dropout_whose_mask_is_read_stays_an_operator(mask_is_read: bool) -> None:
    g = GraphBuilder()
    y = g.op("Dropout", [g.input()], "drop", outputs=2)
    mask = g.nodes[-1].output[1]
    ends = [g.op("Not", [mask])] if mask_is_read else []
    flow = flow_of(g, g.op("Tanh", [y]), *ends)
    assert ("Dropout" in [node.op for node in flow.operators]) is mask_is_read


def test_reads_by_position() -> None:
    """An omitted input is no read.

    What the graph inside of an operator reads comes behind its inputs.
    """
    g = GraphBuilder()
    x, low, outer = g.input("x"), g.const(0.0), g.input("outer", (2,))
    clipped = g.op("Clip", [x, "", low], "clip")
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("Identity", ["outer"], ["y"])], "body", [], [y])
    chosen = g.op("If", [g.input("chosen", (), bool)], "if", then_branch=body, else_branch=body)
    flow = flow_of(g, g.qdq(clipped), chosen, outer)
    clip, branch = flow.operators
    assert [(read.position, read.value) for read in flow.inputs(clip)] == [(0, "x"), (2, low)]
    assert [(read.position, read.value) for read in flow.inputs(branch)] == [
        (0, "chosen"),
        (1, "outer"),
    ]
    assert [read.value for read in flow.data_inputs(clip)] == ["x"]
    assert [flow.input(clip, position) is None for position in range(4)] == [
        False,
        True,
        False,
        True,
    ]
    ends = {read.value: read.position for read in flow.reads if read.node is None}
    assert ends == {clipped: 0, chosen: 1, "outer": 2}
    assert set(flow.values) == {"x", low, clipped, "chosen", chosen, "outer"}
    assert [read.node for read in flow.readers("outer")] == [branch, None]
    assert flow.readers("nowhere") == ()


def test_readers_of_value_and_of_node_outputs() -> None:
    g = GraphBuilder()
    left = g.op("Split", [g.input("x")], "split", outputs=2, axis=1)
    right = g.nodes[-1].output[1]
    flow = flow_of(g, g.op("Tanh", [left], "tanh"), g.op("Add", [left, right], "add"))
    split, tanh, add = flow.operators
    assert [read.node for read in flow.output_reads(split)] == [tanh, add, add]
    assert flow.only_reader(left) is None
    only = flow.only_reader(right)
    assert only is not None
    assert (only.node, only.position) == (add, 1)
    assert flow.only_reader("nowhere") is None


def test_the_scale_that_all_readers_share() -> None:
    def shared(*scales: float | None) -> float | None:
        g = GraphBuilder()
        x = g.input("x")
        found = flow_of(
            g, *(x if scale is None else g.qdq(x, scale) for scale in scales)
        ).common_scale("x")
        return None if found is None else found.largest

    assert shared(0.5) == shared(0.5, 0.5) == 0.5
    assert shared(0.5, 0.25) is shared(0.5, None) is shared(None) is shared() is None


def test_a_value_leaves_its_producer_in_its_first_scale() -> None:
    g = GraphBuilder()
    (read,) = flow_of(g, g.op("Tanh", [g.qdq(g.qdq(g.input("x"), 0.5), 0.25)])).readers("x")
    assert [scale.largest for scale in read.explicit] == [0.5, 0.25]
    assert read.entry is read.explicit[0]
    assert read.scale is read.explicit[1]
    assert len(read.quantizers) == 4
    plain = replace(read, explicit=(), scale=read.scale)
    assert plain.entry is read.scale
    assert replace(plain, scale=None).entry is None


def test_quantizers_are_named_in_the_order_of_the_way() -> None:
    g = GraphBuilder()
    copied = g.op("Identity", [g.qdq(g.op("Identity", [g.input("x")]), 0.5, "first")])
    (read,) = flow_of(g, g.op("Tanh", [g.qdq(copied, 0.5, "second")])).readers("x")
    kinds = (
        "first/QuantizeLinear",
        "first/DequantizeLinear",
        "second/QuantizeLinear",
        "second/DequantizeLinear",
    )
    assert read.quantizers == kinds
    assert [scale.largest for scale in read.explicit] == [0.5]  # equal scales in a row cancel


def test_trace_goes_up_to_what_is_quantized() -> None:
    g = GraphBuilder()
    x = g.input("x")
    quantized = g.qdq(x, 0.5)
    read = flow_of(g, g.op("Tanh", [quantized])).trace(quantized)
    assert (read.node, read.position, read.value) == (None, 0, "x")
    assert read.scale is not None
    assert read.scale.largest == 0.5


def test_with_scales_changes_the_given_reads_only() -> None:
    g = GraphBuilder()
    flow = flow_of(g, g.op("Tanh", [g.input("x")]), g.op("Exp", ["x"]))
    first, second = flow.readers("x")
    scale = Scale(key=(b"1", None, "int8"), largest=1.0)
    changed = flow.with_scales({second: scale})
    assert [read.scale for read in changed.readers("x")] == [None, scale]
    assert changed.operators == flow.operators
    assert [read.scale for read in (first, second)] == [None, None]


@pytest.mark.parametrize(("readers", "refused"), [(3, False), (4, True)])
def test_quantizers_in_rows_are_passed_so_often(
    monkeypatch: pytest.MonkeyPatch, readers: int, refused: bool
) -> None:
    monkeypatch.setattr(Tracer, "MAX_PASSED", 6)
    g = GraphBuilder()
    x = g.qdq(g.input("x"))
    g.output(*(g.op("Tanh", [x], f"tanh{index}") for index in range(readers)))
    if refused:
        with pytest.raises(ExportError, match="quantizers in a row in front of 'tanh3'"):
            Flow.of(g.graph())
    else:
        assert len(Flow.of(g.graph()).readers("x")) == 3


def test_final_quantizers_are_named_by_their_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Tracer.MAX_PASSED == 2_000_000
    monkeypatch.setattr(Tracer, "MAX_PASSED", 1)
    g = GraphBuilder()
    with pytest.raises(ExportError, match="in front of 'x'"):
        flow_of(g, g.qdq(g.input("x")))
