"""The graph view: nodes, readers, constancy, and small constants as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qat_lib.errors import ExportError
from qat_lib.onnx_view import graph as graph_module
from qat_lib.onnx_view.graph import OnnxGraph


def model_of(
    *nodes: onnx.NodeProto,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("y",),
    opsets: Sequence[tuple[str, int]] = (("", 17),),
    **constants: np.ndarray,
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in inputs]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "net", given, made, tensors)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*each) for each in opsets], ir_version=8
    )


def graph_of(*nodes: onnx.NodeProto, **options: Any) -> OnnxGraph:
    return OnnxGraph(model_of(*nodes, **options))


def relu(source: str = "x", target: str = "y", name: str = "") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name)


def body(
    *nodes: onnx.NodeProto, inputs: Sequence[str] = (), outputs: Sequence[str] = ()
) -> onnx.GraphProto:
    values = (
        [helper.make_empty_tensor_value_info(name) for name in names] for names in (inputs, outputs)
    )
    return helper.make_graph(nodes, "body", *values)


@pytest.mark.parametrize(
    ("opsets", "version"),
    [
        ((("", 17),), 17),
        ((("ai.onnx", 13),), 13),
        ((("com.microsoft", 1), ("", 17)), 17),
        ((("", 15), ("com.microsoft", 1)), 15),
        ((("com.microsoft", 1),), 0),
    ],
)
def test_graph_opset_is_that_of_the_standard_operators(opsets: Any, version: int) -> None:
    assert graph_of(relu(), opsets=opsets).opset == version


def test_graph_names_its_inputs_and_outputs() -> None:
    graph = graph_of(
        relu("x", "y"),
        relu("w", "z"),
        inputs=("x", "w"),
        outputs=("y", "z"),
        w=np.zeros((2, 3), np.float32),
    )
    assert (graph.inputs, graph.outputs) == (("x",), ("y", "z"))
    assert graph.output_names == {"y", "z"}


def test_graph_names_nodes_and_operators() -> None:
    nodes = [
        relu("x", "a", "first"),
        helper.make_node("Relu", ["a"], ["b"], domain="ai.onnx"),
        helper.make_node("QGemm", ["b"], ["y"], domain="com.microsoft"),
    ]
    graph = graph_of(*nodes)
    assert [node.op for node in graph.nodes] == ["Relu", "Relu", "com.microsoft.QGemm"]
    assert [node.name for node in graph.nodes] == ["first", "Relu_1", "QGemm_2"]
    assert [node.index for node in graph.nodes] == [0, 1, 2]
    assert graph.node_by_name["Relu_1"] is graph.nodes[1]


def test_graph_reads_attributes_with_values_only() -> None:
    node = helper.make_node("Gather", ["x", "x"], ["y"], axis=1)
    node.attribute.insert(
        0, onnx.AttributeProto(name="referred", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    )
    (found,) = graph_of(node).nodes
    assert found.attributes == {"axis": 1}


def test_graph_knows_who_writes_and_who_reads() -> None:
    graph = graph_of(
        helper.make_node("Add", ["x", "x"], ["a"], "add"), relu("a", "y"), relu("a", "z")
    )
    first, second, third = graph.nodes
    assert graph.producer("x") is None
    assert graph.producer("z") is third
    assert graph.consumers("x") == (first,)
    assert graph.consumers("a") == (second, third)
    assert graph.consumers("y") == ()


def test_node_reads_what_its_subgraphs_read() -> None:
    """Outer tensors only, including those that it returns or nested graphs read.

    Not what a graph takes, holds or makes itself.
    """
    innermost = body(relu("far", "u"), outputs=("u",))
    inner = body(
        helper.make_node("Add", ["taken", "held"], ["made"]),
        helper.make_node("Add", ["made", "near"], ["v"]),
        helper.make_node("Gemm", ["v", "near", ""], ["z"]),
        helper.make_node("If", ["z"], ["t"], then_branch=innermost, else_branch=innermost),
        inputs=("taken",),
        outputs=("t", "handed"),
    )
    inner.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "held"))
    other = body(relu("last", "w"), outputs=("w",))
    node = helper.make_node("If", ["x"], ["y"], "if", then_branch=inner, else_branch=other)
    graph = graph_of(node, inputs=("x", "near", "far", "handed", "last"))
    (found,) = graph.nodes
    assert sorted(found.captures) == ["far", "handed", "last", "near"]
    assert found.attributes == {}
    assert graph.consumers("far") == (found,)


def test_constants_depend_on_no_data() -> None:
    nodes = [
        relu("c", "d"),
        helper.make_node("Add", ["x", "d"], ["data"]),
        helper.make_node("Clip", ["d", "", "c"], ["clipped"]),
        helper.make_node("Shape", ["data"], ["shape"]),
        helper.make_node("Size", ["data"], ["size"]),
        helper.make_node("RandomNormal", [], ["noise"], shape=[2]),
        helper.make_node("If", ["c"], ["chosen"], then_branch=body(relu("x", "u"), outputs=("u",))),
        helper.make_node("Split", ["d"], ["left", "right"]),
    ]
    graph = graph_of(*nodes, c=np.zeros((2, 3), np.float32))
    assert graph.constants == {"c", "d", "clipped", "shape", "size", "left", "right"}
    assert graph.is_constant("d")
    assert not graph.is_constant("chosen")


def test_a_sparse_initializer_is_a_constant() -> None:
    model = model_of(helper.make_node("MatMul", ["x", "w"], ["y"]))
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "w_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    assert OnnxGraph(model).constants == {"w"}


def test_shapes_and_types() -> None:
    graph = graph_of(
        helper.make_node("Transpose", ["x"], ["y"]), helper.make_node("Unknown", ["x"], ["z"])
    )
    assert (graph.shape("y"), graph.dtype("y")) == ((3, 2), "float32")
    assert (graph.shape("z"), graph.dtype("z")) == (None, "")


def test_value_of_what_is_stored_copied_or_cast() -> None:
    stored = np.array([1.5, 2.5], np.float32)
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("Cast", ["d"], ["e"], to=TensorProto.DOUBLE),
    ]
    graph = graph_of(*nodes, relu("c", "f"), relu(), c=stored)
    for name in "cde":
        np.testing.assert_array_equal(graph.value(name), stored)
    for name in ("f", "x", "y", "nowhere", ""):
        assert graph.value(name) is None


@pytest.mark.parametrize(("copies", "known"), [(64, True), (65, False)])
def test_value_looks_through_so_many_copies(copies: int, known: bool) -> None:
    names = ["c", *(f"c{i}" for i in range(copies))]
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in pairwise(names)]
    found = graph_of(*nodes, c=np.ones(1, np.float32)).value(names[-1])
    assert (found is not None) is known


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value": numpy_helper.from_array(np.array([3, 4]))}, [3, 4]),
        ({"value_int": 5}, 5),
        ({"value_ints": [5, 6]}, [5, 6]),
        ({"value_float": 0.5}, 0.5),
        ({"value_floats": [0.5, 1.5]}, [0.5, 1.5]),
        ({"value_string": "text"}, None),
        ({}, None),
    ],
)
def test_value_of_a_constant_node(attributes: dict[str, Any], expected: Any) -> None:
    graph = graph_of(helper.make_node("Constant", [], ["c"], **attributes), relu())
    found = graph.value("c")
    assert (None if found is None else found.tolist()) == expected


def test_value_leaves_large_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "SMALL", 6)
    graph = graph_of(relu(), six=np.zeros((2, 3)), seven=np.zeros(7), none=np.zeros((0, 9)))
    assert graph.value("seven") is None
    shapes = [value.shape for name in ("six", "none") if (value := graph.value(name)) is not None]
    assert shapes == [(2, 3), (0, 9)]


def test_value_is_unknown_where_a_size_is_negative() -> None:
    model = model_of(relu(), c=np.zeros((2, 3), np.float32))
    model.graph.initializer[0].dims[:] = [-2, -3]
    assert OnnxGraph(model).value("c") is None


def test_value_is_read_once_where_it_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_module, "_REMEMBERED", 3)
    graph = graph_of(relu(), small=np.zeros(3), large=np.zeros(4))
    assert graph.value("small") is graph.value("small")
    assert graph.value("large") is not graph.value("large")
    assert graph.value("large") is not None


def test_the_sizes_of_values_that_are_read_and_kept() -> None:
    assert (graph_module.SMALL, graph_module._REMEMBERED) == (1_048_576, 4096)


def outside(folder: Path, size: int = 12) -> onnx.ModelProto:
    """A model whose three float32 values lie in a ``size``-byte file."""
    (folder / "data.bin").write_bytes(np.array([1, 2, 3], np.float32).tobytes()[:size])
    model = model_of(relu())
    tensor = model.graph.initializer.add(name="c", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data.bin")
    return model


def test_value_in_an_external_file(tmp_path: Path) -> None:
    np.testing.assert_array_equal(
        OnnxGraph(outside(tmp_path), base_dir=tmp_path).value("c"), [1, 2, 3]
    )
    assert OnnxGraph(outside(tmp_path)).value("c") is None


@pytest.mark.parametrize("case", ["short inside", "short outside", "no file", "no such type"])
def test_value_that_cannot_be_read_is_named(case: str, tmp_path: Path) -> None:
    model = outside(tmp_path, 8 if case == "short outside" else 12)
    if case in ("short inside", "no such type"):
        del model.graph.initializer[0]
        kind = 99 if case == "no such type" else TensorProto.FLOAT
        model.graph.initializer.add(name="c", data_type=kind, dims=[3], raw_data=b"\0" * 8)
    if case == "no file":
        (tmp_path / "data.bin").unlink()
    with pytest.raises(
        ExportError,
        match=r"^Expected tensor 'c' to hold \[3\] values\. Its data can't be read: \S+",
    ):
        OnnxGraph(model, base_dir=tmp_path).value("c")


@pytest.mark.parametrize(
    "nodes",
    [
        [relu("x", "y", "first"), relu("x", "y", "second")],
        [relu("x", "c", "second")],
        [relu("x", "x", "second")],
        [helper.make_node("Split", ["x"], ["y", "y"], "second")],
    ],
    ids=["two nodes", "an initializer", "an input", "one node"],
)
def test_a_tensor_of_two_producers_is_refused(nodes: list[onnx.NodeProto]) -> None:
    with pytest.raises(
        ExportError, match=r"^Expected every tensor to have one producer.*by node 'second'"
    ):
        graph_of(*nodes, c=np.zeros(3, np.float32))


def test_outputs_that_are_left_out_have_no_producer() -> None:
    nodes = [helper.make_node("Split", ["x"], ["", name]) for name in "ab"]
    graph = graph_of(*nodes)
    assert graph.producer("") is None
    assert [node.outputs for node in graph.nodes] == [("", "a"), ("", "b")]


def test_a_tensor_without_a_producer_is_refused() -> None:
    with pytest.raises(ExportError, match=r"Node 'lonely' reads 'nothing', which no node writes"):
        graph_of(relu(), relu("nothing", "z", "lonely"))


def test_a_cycle_is_refused() -> None:
    nodes = [
        relu("x", "y", "fine"),
        helper.make_node("Add", ["x", "b"], ["a"], "first"),
        relu("a", "b", "second"),
    ]
    with pytest.raises(ExportError, match=r"without cycles. Node 'first' waits for its own output"):
        graph_of(*nodes)
    with pytest.raises(ExportError, match="Node 'itself' waits for its own output"):
        graph_of(relu("y", "y", "itself"))


def test_a_node_waits_for_all_that_it_reads() -> None:
    """Also for reads of its subgraph, and once for a double read."""
    inner = body(relu("b", "u"), outputs=("u",))
    nodes = [
        helper.make_node("If", ["c"], ["z"], "if", then_branch=inner),
        helper.make_node("Add", ["a", "b"], ["c"], "add"),
        helper.make_node("Mul", ["a", "a"], ["b"], "mul"),
        relu("x", "a", "relu"),
    ]
    assert [node.name for node in graph_of(*nodes).nodes] == ["relu", "mul", "add", "if"]


def test_load_reads_external_data_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(outside(tmp_path).SerializeToString())
    np.testing.assert_array_equal(OnnxGraph.load(str(path)).value("c"), [1, 2, 3])
