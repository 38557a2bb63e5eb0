"""Shapes and element types of tensors: declared, inferred, hidden constants.

Inference is not shown the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.onnx_view import shapes
from qat_lib.onnx_view.shapes import (
    TensorType,
    declared_types,
    dtype_name,
    fixed_sizes,
    infer_graph,
    infer_types,
    sizes_differ,
)

LARGE = 4096  # bytes from which on a constant is shown by its shape only


def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    *nodes: onnx.NodeProto,
    inputs: tuple[onnx.ValueInfoProto, ...] = (value("x", (2, 3)),),
    **constants: np.ndarray,
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(
        nodes, "net", inputs, [helper.make_empty_tensor_value_info("y")], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (TensorProto.FLOAT, "float32"),
        (TensorProto.DOUBLE, "float64"),
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.INT8, "int8"),
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
        (TensorProto.UNDEFINED, ""),
        (99, ""),
    ],
)
def test_dtype_name(kind: int, name: str) -> None:
    assert dtype_name(kind) == name


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3), (2, 3)),
        (("n", 0), ("n", 0)),
        ((None, 3), (None, 3)),
        ((-1, 3), (None, 3)),
        ((), ()),
        (None, None),
    ],
)
def test_declared_types_of_known_named_open_dimensions(shape: Any, expected: Any) -> None:
    ((name, found),) = declared_types(onnx.GraphProto(input=[value("x", shape)]))
    assert (name, found) == ("x", TensorType(shape=expected, dtype="float32"))


def test_declared_types_treats_unnamed_dimension_as_open() -> None:
    info = value("x", ("n", 3))
    info.type.tensor_type.shape.dim[0].dim_param = ""
    assert [found.shape for _, found in declared_types(onnx.GraphProto(input=[info]))] == [
        (None, 3)
    ]


def test_declared_types_of_inputs_inner_tensors_and_outputs() -> None:
    graph = onnx.GraphProto(
        input=[value("a", (1,))],
        value_info=[value("b", (2,), TensorProto.INT8)],
        output=[value("c", (3,))],
    )
    found = [(name, each.shape, each.dtype) for name, each in declared_types(graph)]
    assert found == [("a", (1,), "float32"), ("b", (2,), "int8"), ("c", (3,), "float32")]


def test_infer_types_of_tensors_inside_and_of_constants() -> None:
    constant = helper.make_node(
        "Constant", [], ["k"], value=numpy_helper.from_array(np.zeros((4, 5), np.int8))
    )
    model = model_of(
        helper.make_node("Transpose", ["x"], ["t"]),
        constant,
        helper.make_node("Relu", ["t"], ["y"]),
        w=np.zeros((7, 1)),
    )
    found = infer_types(model)
    assert {name: (each.shape, each.dtype) for name, each in found.items()} == {
        "x": ((2, 3), "float32"),
        "t": ((3, 2), "float32"),
        "y": ((3, 2), "float32"),
        "w": ((7, 1), "float64"),
        "k": ((4, 5), "int8"),
    }


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (
            helper.make_node("Constant", [], ["k"], value_ints=[1, 2]),
            TensorType(shape=(2,), dtype="int64"),
        ),
        (helper.make_node("Relu", ["x"], ["k"]), TensorType(shape=(2, 3), dtype="float32")),
        (helper.make_node("Constant", [], ["k"]), None),
        (
            helper.make_node(
                "Constant", [], [], value=numpy_helper.from_array(np.zeros(2, np.int64))
            ),
            None,
        ),
    ],
    ids=["numbers", "another operator", "no value", "no output"],
)
def test_infer_types_of_what_is_no_constant_tensor(
    constant: onnx.NodeProto, expected: TensorType | None
) -> None:
    found = infer_types(model_of(constant))
    assert found.get("k") == expected
    assert found["x"].shape == (2, 3)


def test_infer_types_leaves_a_tensor_of_another_operator_alone() -> None:
    """The output has the size in the attribute, not the attribute's size."""
    filled = helper.make_node(
        "ConstantOfShape", ["size"], ["y"], value=numpy_helper.from_array(np.zeros(1, np.int8))
    )
    assert infer_types(model_of(filled, size=np.array([2, 5])))["y"] == TensorType(
        shape=(2, 5), dtype="int8"
    )


def test_constants_have_types_also_where_the_inference_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shapes, "infer", lambda model, *, follow_values: model)
    tensor = numpy_helper.from_array(np.zeros((4, 5), np.int8))
    nodes = [
        helper.make_node(op, [], [op, "second"], value=tensor) for op in ("Any", "Constant", "Zero")
    ]
    found = infer_types(model_of(*nodes, w=np.zeros(3)))
    int8 = TensorType(shape=(4, 5), dtype="int8")
    assert {name: found[name] for name in found if name not in "xy"} == {
        "Constant": int8,
        "w": TensorType(shape=(3,), dtype="float64"),
    }


def test_infer_graph_replaces_the_shapes_of_inputs() -> None:
    inputs = (value("x", ("n", 3), TensorProto.INT8), value("z", ("n", 4)))
    nodes = [helper.make_node("Transpose", [a], [b]) for a, b in (("x", "y"), ("z", "u"))]
    model = model_of(*nodes, inputs=inputs)
    found = dict(declared_types(infer_graph(model, {"x": (5, 3)})))
    assert found["x"] == TensorType(shape=(5, 3), dtype="int8")
    assert found["y"] == TensorType(shape=(3, 5), dtype="int8")
    assert found["u"].shape == (4, "n")
    assert model.graph.input[0] == inputs[0]


def raw(name: str, size: int, kind: int = TensorProto.INT8) -> onnx.TensorProto:
    """A tensor of ``size`` bytes, all fields counted."""
    made = onnx.TensorProto(name=name, data_type=kind, dims=[size], raw_data=bytes(size))
    while made.ByteSize() > size:
        made.dims[0] -= 1
        made.raw_data = made.raw_data[1:]
    assert made.ByteSize() == size
    return made


@pytest.mark.parametrize(("size", "kept"), [(LARGE, True), (LARGE + 1, False)])
def test_inference_sees_large_weights_by_their_shape_only(size: int, kept: bool) -> None:
    model = model_of(helper.make_node("Identity", ["w"], ["y"]))
    model.graph.initializer.append(raw("w", size))
    seen = infer_graph(model)
    assert [tensor.name for tensor in seen.initializer] == ["w"] * kept
    assert [info.name for info in seen.input] == ["x"] + ["w"] * (not kept)
    assert dict(declared_types(seen))["y"].shape == tuple(model.graph.initializer[0].dims)


def test_inference_does_not_see_external_weights() -> None:
    model = model_of(helper.make_node("Identity", ["w"], ["y"]))
    model.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT16, dims=[7, 5], data_location=TensorProto.EXTERNAL
    )
    seen = infer_graph(model)
    assert len(seen.initializer) == 0
    assert dict(declared_types(seen))["y"] == TensorType(shape=(7, 5), dtype="float16")


def test_inference_keeps_an_input_that_has_a_large_default() -> None:
    model = model_of(
        helper.make_node("Identity", ["w"], ["y"]), inputs=(value("w", (5000,), TensorProto.INT8),)
    )
    model.graph.initializer.append(raw("w", 5000))
    assert [info.name for info in infer_graph(model).input] == ["w"]


@pytest.mark.parametrize(("size", "kept"), [(LARGE, True), (LARGE + 1, False)])
def test_inference_sees_large_constants_by_their_shape_only(size: int, kept: bool) -> None:
    constant = helper.make_node("Constant", [], ["k"], value=raw("", 4000))
    constant.attribute[0].doc_string = "d" * (size - constant.ByteSize() - 2)
    assert constant.ByteSize() == size
    seen = infer_graph(model_of(constant, helper.make_node("Identity", ["k"], ["y"])))
    assert [node.op_type for node in seen.node] == ["Constant"] * kept + ["Identity"]
    assert [info.name for info in seen.input] == ["x"] + ["k"] * (not kept)
    assert dict(declared_types(seen))["y"] == TensorType(
        shape=tuple(constant.attribute[0].t.dims), dtype="int8"
    )


def test_inference_keeps_large_nodes_of_other_operators() -> None:
    large = helper.make_node("Relu", ["x"], ["y"], "n" * 5000)
    assert [node.op_type for node in infer_graph(model_of(large)).node] == ["Relu"]


def test_inference_fills_in_what_a_model_leaves_out() -> None:
    """An old format version and no graph name; ``value_info`` is kept."""
    model = model_of(
        helper.make_node("Unknown", ["x"], ["t"]), helper.make_node("Transpose", ["t"], ["y"])
    )
    model.ir_version, model.graph.name = 3, ""
    model.graph.value_info.append(value("t", (4, 5)))
    assert infer_types(model)["y"].shape == (5, 4)
    assert infer_graph(model).name == "graph"
    model.graph.name = "own"
    assert infer_graph(model).name == "own"


@pytest.mark.parametrize(("old", "new"), [(3, 8), (8, 8), (9, 9)])
def test_inference_reads_model_format_or_newer(
    monkeypatch: pytest.MonkeyPatch, old: int, new: int
) -> None:
    seen: list[onnx.ModelProto] = []

    def here(model: onnx.ModelProto, *, follow_values: bool) -> onnx.ModelProto:
        seen.append(model)
        return model

    monkeypatch.setattr(shapes, "infer", here)
    model = model_of(helper.make_node("Relu", ["x"], ["y"]))
    model.ir_version = old
    infer_graph(model)
    assert [each.ir_version for each in seen] == [new]


@pytest.mark.parametrize("answers", [True, False])
def test_inference_of_what_may_grow_happens_in_a_child(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Where the child fails, no values are followed."""
    asked: list[str] = []

    def child(model: onnx.ModelProto) -> onnx.ModelProto | None:
        asked.append("child")
        return model if answers else None

    def here(model: onnx.ModelProto, *, follow_values: bool) -> onnx.ModelProto:
        asked.append(f"here {follow_values}")
        return model

    monkeypatch.setattr(shapes, "infer_in_child", child)
    monkeypatch.setattr(shapes, "infer", here)
    infer_graph(model_of(helper.make_node("Relu", ["x"], ["y"])))
    assert asked == ["here True"]
    infer_graph(
        model_of(
            helper.make_node("Expand", ["x", "s"], ["y"]),
            inputs=(value("s", (2,), TensorProto.INT64),),
        )
    )
    assert asked[1:] == (["child"] if answers else ["child", "here False"])


@pytest.mark.parametrize(
    ("shape", "expected"), [(None, []), ((), []), ((None, 3, "n", 0), [3, 0]), ((2, 4), [2, 4])]
)
def test_fixed_sizes_are_the_numbers_of_a_shape(shape: Any, expected: list[int]) -> None:
    assert fixed_sizes(shape) == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((2, 3), (2, 3), False),
        ((2, 3), (2, 4), True),
        ((None, "n", 3), (2, 4, 3), False),
        ((2, 3), (2, 3, 4), False),
    ],
)
def test_sizes_differ_where_both_are_known(first: Any, second: Any, expected: bool) -> None:
    assert sizes_differ(first, second) is sizes_differ(second, first) is expected
