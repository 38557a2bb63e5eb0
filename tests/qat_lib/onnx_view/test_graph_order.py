"""The order of a graph's nodes, and the types that it declares."""

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.shapes import declared_types, infer_types


def graph_of(*edges: tuple[str, str]) -> OnnxGraph:
    """A graph of Relu nodes, one per tensor pair, in that order."""
    nodes = [
        helper.make_node("Relu", [source], [target], f"{source}{target}")
        for source, target in edges
    ]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xbd"}
    graph = helper.make_graph(nodes, "net", [values["x"]], [values["b"], values["d"]])
    return OnnxGraph(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


def names(graph: OnnxGraph) -> Sequence[str]:
    return [node.name for node in graph.nodes]


def test_graph_keeps_the_order_of_the_file() -> None:
    """Branch after branch: Kahn's algorithm would go through both at once."""
    assert names(graph_of(("x", "a"), ("a", "b"), ("x", "c"), ("c", "d"))) == [
        "xa",
        "ab",
        "xc",
        "cd",
    ]


def test_graph_orders_nodes_after_what_they_read() -> None:
    assert names(graph_of(("c", "d"), ("a", "b"), ("x", "a"), ("x", "c"))) == [
        "xa",
        "xc",
        "ab",
        "cd",
    ]


def test_declared_types_leaves_out_what_is_no_tensor() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    tensor = helper.make_tensor_value_info("x", TensorProto.INT8, [2, "n"])
    graph = onnx.GraphProto(input=[sequence, tensor])
    ((name, found),) = declared_types(graph)
    assert (name, found.shape, found.dtype) == ("x", (2, "n"), "int8")


def test_infer_types_continues_after_an_illegal_type() -> None:
    """A rule reports the wrong type; other shapes are still needed."""
    text = helper.make_tensor_value_info("t", TensorProto.STRING, [2])
    number = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    nodes = [helper.make_node("Relu", ["t"], ["wrong"]), helper.make_node("Relu", ["x"], ["right"])]
    model = helper.make_model(
        helper.make_graph(nodes, "net", [text, number], []),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    assert infer_types(model)["right"].shape == (3,)
