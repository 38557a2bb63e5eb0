"""Constants that a builder computes beforehand: where each limit lies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from bounds_models import found, model
from onnx import TensorProto, helper

from qat_lib.onnx_view import bounds


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float64", 8),
        ("int64", 8),
        ("uint64", 8),
        ("float32", 4),
        ("int32", 4),
        ("float16", 2),
        ("bfloat16", 2),
        ("int8", 1),
        ("uint8", 1),
        ("bool", 1),
    ],
)
def test_folded_constants_count_their_bytes(
    monkeypatch: pytest.MonkeyPatch, dtype: str, size: int
) -> None:
    """Twelve elements of each type, from a Cast of a constant.

    The allowance for weights is switched off.
    """
    cast = helper.make_node(
        "Cast", ["c"], ["d"], "cast", to=getattr(TensorProto, _ELEMENT.get(dtype, dtype.upper()))
    )
    proto = model(cast, c=np.zeros((3, 4), np.float32))
    monkeypatch.setattr(bounds, "MAX_FOLDED_RATIO", 0)
    monkeypatch.setattr(bounds, "MAX_FOLDED_BYTES", 12 * size)
    assert found(proto) == ""
    monkeypatch.setattr(bounds, "MAX_FOLDED_BYTES", 12 * size - 1)
    assert f"more than {12 * size - 1:,} bytes" in found(proto)
    assert "'cast' (Cast)" in found(proto)


_ELEMENT = {"float64": "DOUBLE", "float32": "FLOAT"}


def test_folded_constants_may_be_larger_beside_large_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proto = model(
        helper.make_node("Concat", ["c", "c", "c"], ["d"], "concat", axis=0),
        c=np.zeros(4, np.float32),
    )
    monkeypatch.setattr(bounds, "MAX_FOLDED_BYTES", 16)
    monkeypatch.setattr(bounds, "MAX_FOLDED_RATIO", 2)
    assert found(proto) == ""
    monkeypatch.setattr(bounds, "MAX_FOLDED_RATIO", 1)
    assert "Concat" in found(proto)


@pytest.mark.parametrize(
    ("op", "left", "right", "options", "count"),
    [
        ("MatMul", (3, 4), (4, 5), {}, 3 * 5 * 4),
        ("MatMul", (2, 3, 4), (4, 5), {}, 2 * 3 * 5 * 4),
        ("MatMul", (9, 3, 4), (4, 5), {}, 9 * 3 * 5 * 4),
        ("Gemm", (3, 4), (4, 5), {}, 3 * 5 * 4),
        ("Gemm", (4, 3), (4, 5), {"transA": 1}, 3 * 5 * 4),
        ("Gemm", (3, 4), (5, 4), {"transB": 1}, 3 * 5 * 4),
        ("Conv", (1, 2, 5, 5), (7, 2, 3, 3), {}, 7 * 3 * 3 * 2 * 9),
        ("ConvTranspose", (1, 2, 5, 5), (2, 7, 3, 3), {}, 2 * 5 * 5 * 7 * 9),
        ("Add", (3, 4), (3, 4), {}, 0),
    ],
)
def test_products_of_constants_count_their_multiplications(
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    left: Any,
    right: Any,
    options: dict[str, Any],
    count: int,
) -> None:
    product = helper.make_node(op, ["a", "b"], ["c"], "product", **options)
    proto = model(product, a=np.zeros(left, np.float32), b=np.zeros(right, np.float32))
    monkeypatch.setattr(bounds, "MAX_FOLDED_MACS", count)
    assert found(proto) == ""
    if count:
        monkeypatch.setattr(bounds, "MAX_FOLDED_MACS", count - 1)
        assert "products of constants, up to node 'product'" in found(proto)


def test_products_that_read_the_input_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_FOLDED_MACS", 0)
    monkeypatch.setattr(bounds, "MAX_FOLDED_BYTES", 0)
    monkeypatch.setattr(bounds, "MAX_FOLDED_RATIO", 0)
    product = helper.make_node("MatMul", ["x", "b"], ["c"], "product")
    assert found(model(product, b=np.zeros((4, 5), np.float32))) == ""


@pytest.mark.parametrize(
    ("shape", "refused"), [((4, 4), False), ((4, 5), True), (("batch", 16), False)]
)
def test_inputs_have_a_largest_size(
    monkeypatch: pytest.MonkeyPatch, shape: Any, refused: bool
) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 16)
    assert ("the input 'x' has the shape" in found(model(shape=shape))) is refused


def test_what_a_node_makes_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(helper.make_node("Concat", ["x", "x"], ["d"], "concat", axis=0), shape=(4, 4))
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 32)
    assert found(proto) == ""
    monkeypatch.setattr(bounds, "MAX_ELEMENTS", 31)
    assert "node 'concat' makes 'd', which has the shape [8, 4]" in found(proto)


@pytest.mark.parametrize(("length", "refused"), [(3, False), (4, True)])
def test_runs_of_elementwise_operators_have_a_longest(
    monkeypatch: pytest.MonkeyPatch, length: int, refused: bool
) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTWISE_RUN", 3)
    names = ["x", *(f"t{i}" for i in range(length))]
    nodes = [helper.make_node("Add", [a, "one"], [b], f"add_{b}") for a, b in pairwise(names)]
    assert (
        "more than 3 elementwise operators" in found(model(*nodes, one=np.ones(1, np.float32)))
    ) is refused


def loop_of() -> onnx.NodeProto:
    """A loop that runs as often as the tensor ``turns`` says."""
    iteration = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    going = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [iteration, going],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, [])],
    )
    return helper.make_node("Loop", ["turns", ""], [], "loop", body=body)


@pytest.mark.parametrize(("turns", "refused"), [(7, False), (8, False), (9, True)])
def test_loops_have_a_largest_count(
    monkeypatch: pytest.MonkeyPatch, turns: int, refused: bool
) -> None:
    monkeypatch.setattr(bounds, "MAX_TRIPS", 8)
    text = found(
        model(loop_of(), other=np.asarray([99], np.int64), turns=np.asarray(turns, np.int64))
    )
    assert (f"node 'loop' (Loop) runs {turns} times" in text) is refused
    assert bool(text) is refused


@pytest.mark.parametrize("turns", [[], [1, 2]])
def test_loops_of_constants_need_one_count(turns: list[int]) -> None:
    assert "node 'loop' (Loop) runs on constants only" in found(
        model(loop_of(), turns=np.asarray(turns, np.int64))
    )


def test_loop_that_reads_an_input_is_no_constant() -> None:
    loop = loop_of()
    (body,) = (attribute.g for attribute in loop.attribute)
    body.node.append(helper.make_node("Identity", ["x"], ["read"]))
    assert not found(model(loop, turns=np.asarray([1, 2], np.int64)))


@pytest.mark.parametrize(("elements", "refused"), [(2**31 - 1, False), (2**31, True)])
def test_tensors_are_as_large_as_tensorrt_takes(elements: int, refused: bool) -> None:
    assert (
        "a tensor has at most 2,147,483,647 elements" in found(model(shape=(elements,)))
    ) is refused


def test_the_limits_leave_room_for_real_networks() -> None:
    assert (bounds.MAX_NODES, bounds.MAX_ELEMENTWISE_RUN, bounds.MAX_TRIPS) == (
        20_000,
        256,
        100_000,
    )
    assert (bounds.MAX_FOLDED_BYTES, bounds.MAX_FOLDED_RATIO, bounds.MAX_FOLDED_MACS) == (
        2**28,
        16,
        5 * 10**9,
    )


@pytest.mark.parametrize(("count", "refused"), [(3, False), (4, True)])
def test_nodes_have_a_largest_count(
    monkeypatch: pytest.MonkeyPatch, count: int, refused: bool
) -> None:
    monkeypatch.setattr(bounds, "MAX_NODES", 3)
    # Beside the Relu.
    nodes = [helper.make_node("Tanh", ["x"], [f"t{i}"]) for i in range(count - 1)]
    assert (f"there are {count} nodes" in found(model(*nodes))) is refused


@pytest.mark.parametrize(
    ("twice", "refused"), [(False, True), (True, False)], ids=["one reader each", "a second reader"]
)
def test_run_ends_at_second_reader(
    monkeypatch: pytest.MonkeyPatch, twice: bool, refused: bool
) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTWISE_RUN", 3)
    nodes = [helper.make_node("Tanh", [a], [b]) for a, b in pairwise("xabcd")]
    if twice:
        nodes.append(helper.make_node("Softmax", ["b"], ["s"]))
    assert bool(found(model(*nodes))) is refused


@pytest.mark.parametrize("other", ["Softmax", "IsNaN"])
def test_a_run_counts_elementwise_operators_only(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTWISE_RUN", 3)
    ops = ("Tanh", "Tanh", other, "Cast", "Tanh")
    nodes = [
        helper.make_node(op, [a], [b]) for op, (a, b) in zip(ops, pairwise("xabcde"), strict=True)
    ]
    nodes[3].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    assert found(model(*nodes)) == ""


def test_a_run_goes_on_behind_other_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_ELEMENTWISE_RUN", 3)
    for length, refused in ((3, False), (4, True)):
        names = ["x", "s", *(f"t{i}" for i in range(length))]
        ops = ["Softmax", *["Tanh"] * length]
        nodes = [
            helper.make_node(op, [a], [b]) for op, (a, b) in zip(ops, pairwise(names), strict=True)
        ]
        assert bool(found(model(*nodes))) is refused
