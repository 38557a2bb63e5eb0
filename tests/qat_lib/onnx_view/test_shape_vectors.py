"""Which graphs ONNX's inference may follow by value: where each limit lies."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.onnx_view.shape_vectors import shape_vectors_stay_small

KEPT = ("Cast", "Div", "Mul", "Reshape", "Slice", "Squeeze", "Sub", "Unsqueeze")


def graph(
    *nodes: onnx.NodeProto,
    shape: tuple[int | str, ...] = (2, 3),
    **constants: np.ndarray | onnx.TensorProto,
) -> onnx.GraphProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    tensors = [
        value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)
        for name, value in constants.items()
    ]
    return helper.make_graph(nodes, "net", [x], [], tensors)


def node(op: str, *inputs: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, ["y"], **attributes)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


@pytest.mark.parametrize(
    ("shape", "small"),
    [
        ((2**12, 2**12), True),
        ((2**12, 2**12 + 1), False),
        (("batch", 2**24), True),
        (("batch", 2**24 + 1), False),
    ],
)
def test_inputs(shape: tuple[int | str, ...], small: bool) -> None:
    assert shape_vectors_stay_small(graph(node("Relu", "x"), shape=shape)) is small


@pytest.mark.parametrize(
    ("made", "limit", "small"),
    [
        (node("Range", "zero", "limit", "one"), ints(2**24), True),
        (node("Range", "zero", "limit", "one"), ints(2**24 + 1), False),
        (node("Range", "limit", "one", "one"), ints(-(2**24) - 1), False),
        (node("Range", "zero", "one", "limit"), ints(2**24 + 1), False),
        (node("Range", "zero", "x", "one"), ints(1), False),  # nobody knows how many
        (node("ConstantOfShape", "limit"), ints(2**12, 2**12), True),
        (node("ConstantOfShape", "limit"), ints(2**12, 2**12 + 1), False),
        (node("Expand", "x", "limit"), ints(2**25), False),
        (node("Expand", "x", "limit"), ints(-(2**25)), False),
        (node("Expand", "limit", "one"), ints(2**25), True),  # not the operand that says the size
        (node("Tile", "x", "limit"), ints(2**25), False),
        (node("OneHot", "x", "limit", "one"), ints(2**25), False),
        (node("Resize", "x", "", "limit"), ints(2**25), False),
        (node("Resize", "x", "", "", "limit"), ints(2**25), False),
        (node("Resize", "x", "", "one"), ints(2**25), True),
        (node("Upsample", "x", "limit"), ints(2**25), False),
        (node("Relu", "limit"), ints(2**25), True),
    ],
)
def test_operators_as_large_as_a_constant_says(
    made: onnx.NodeProto, limit: np.ndarray, small: bool
) -> None:
    assert shape_vectors_stay_small(graph(made, zero=ints(1), one=ints(1), limit=limit)) is small


def test_growth_multiplies() -> None:
    once = node("Tile", "x", "limit")
    assert shape_vectors_stay_small(graph(once, once, limit=ints(2**12)))
    assert not shape_vectors_stay_small(graph(once, once, once, limit=ints(2**12)))
    none = node("Tile", "x", "zero")
    assert not shape_vectors_stay_small(
        graph(none, once, once, once, limit=ints(2**12), zero=ints(0))
    )


def test_large_or_unreadable_constant_is_unknown() -> None:
    assert shape_vectors_stay_small(graph(node("Tile", "x", "limit"), limit=np.ones(64, np.int64)))
    assert not shape_vectors_stay_small(
        graph(node("Tile", "x", "limit"), limit=np.ones(65, np.int64))
    )
    external = onnx.TensorProto(name="limit", data_type=TensorProto.INT64, dims=[1])
    assert not shape_vectors_stay_small(graph(node("Tile", "x", "limit"), limit=external))
    short = onnx.TensorProto(
        name="limit", data_type=TensorProto.INT64, dims=[2], raw_data=b"\1\0\0"
    )
    assert not shape_vectors_stay_small(graph(node("Tile", "x", "limit"), limit=short))


@pytest.mark.parametrize(
    ("made", "length", "small"),
    [
        (node("Identity", "v"), 4096, True),
        (node("Identity", "v"), 4097, False),
        (node("Concat", "v", "v", axis=0), 2048, True),
        (node("Concat", "v", "v", axis=0), 2049, False),
        (node("Concat", "v", "x", "one", axis=0), 4095, True),
        (node("Concat", "v", "x", "one", axis=0), 4096, False),
        (node("Add", "one", "v"), 4096, True),
        (node("Add", "one", "v"), 4097, False),
        (node("Add", "v", "one"), 4097, False),
        *((node(op, "v", "one"), length, length == 4096) for op in KEPT for length in (4096, 4097)),
        (node("Relu", "v"), 5000, True),  # not followed
        (node("Shape", "v"), 5000, True),
        (node("Size", "v"), 5000, True),
        (node("Gather", "v", "one"), 5000, True),
        (node("Gather", "one", "v"), 4096, True),
        (node("Gather", "one", "v"), 4097, False),
        (node("Gather", "v", "x"), 1, False),
        (node("Gather", "x", "v"), 5000, True),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths(made: onnx.NodeProto, length: int, small: bool, dtype: type) -> None:
    made_graph = graph(made, v=np.zeros(length, dtype), one=np.zeros(1, dtype))
    assert shape_vectors_stay_small(made_graph) is small


def test_only_integer_vectors_are_followed() -> None:
    for array in (np.zeros(5000, np.float32), np.zeros((2, 2500), np.int64)):
        assert shape_vectors_stay_small(graph(node("Identity", "v"), v=array))
    # Scalars count as one.
    assert shape_vectors_stay_small(graph(node("Concat", "v", "v", axis=0), v=np.int64(3)))


def test_shapes_count_as_long_as_the_highest_rank() -> None:
    def shapes(count: int) -> onnx.GraphProto:
        shape = helper.make_node("Shape", ["x"], ["v"])
        return graph(shape, node("Concat", *["v"] * count, axis=0))

    assert shape_vectors_stay_small(shapes(64))
    assert not shape_vectors_stay_small(shapes(65))


def test_constants_of_nodes_and_of_inner_graphs_count() -> None:
    constant = helper.make_node(
        "Constant", [], ["v"], value=numpy_helper.from_array(np.zeros(2049, np.int64))
    )
    doubled = node("Concat", "v", "v", axis=0)
    assert not shape_vectors_stay_small(graph(constant, doubled))
    inner = helper.make_graph([constant, doubled], "inner", [], [])
    fine = helper.make_graph([], "fine", [], [])
    assert not shape_vectors_stay_small(graph(node("If", "x", then_branch=inner, else_branch=fine)))
    assert not shape_vectors_stay_small(graph(node("If", "x", then_branch=fine, else_branch=inner)))
    assert shape_vectors_stay_small(graph(node("If", "x", then_branch=fine, else_branch=fine)))


def test_all_vectors_of_a_graph_together_have_a_limit() -> None:
    copies = [helper.make_node("Identity", ["v"], [f"y{i}"]) for i in range(1025)]
    assert shape_vectors_stay_small(graph(*copies[:1024], v=np.zeros(4096, np.int64)))
    assert not shape_vectors_stay_small(graph(*copies, v=np.zeros(4096, np.int64)))
    one = helper.make_node("Identity", ["w"], ["z"])
    assert not shape_vectors_stay_small(
        graph(*copies[:1024], one, v=np.zeros(4096, np.int64), w=ints(1))
    )


@pytest.mark.parametrize(("count", "small"), [(4096, True), (4097, False)])
def test_sizes_count_as_one(count: int, small: bool) -> None:
    size = helper.make_node("Size", ["x"], ["s"])
    assert shape_vectors_stay_small(graph(size, node("Concat", *["s"] * count, axis=0))) is small


@pytest.mark.parametrize("op", ["ConstantOfShape", "Tanh"])
def test_what_is_no_shape_arithmetic_is_not_followed(op: str) -> None:
    """Whatever tensors its attributes hold."""
    value = numpy_helper.from_array(ints(0))
    made = helper.make_node(op, ["one"] if op == "ConstantOfShape" else ["x"], ["v"], value=value)
    assert shape_vectors_stay_small(
        graph(made, node("Concat", *["v"] * 5000, axis=0), one=np.ones((1, 1), np.int64))
    )


def test_nodes_without_outputs_are_passed_by() -> None:
    value = numpy_helper.from_array(np.zeros(5000, np.int64))
    for op, inputs, attributes in (("Constant", [], {"value": value}), ("Identity", ["v"], {})):
        none = helper.make_node(op, inputs, [], **attributes)
        assert shape_vectors_stay_small(
            graph(none, node("Identity", "one"), v=np.zeros(5000, np.int64), one=ints(1))
        )
        large = node("Identity", "v")
        assert not shape_vectors_stay_small(graph(none, large, v=np.zeros(5000, np.int64)))
