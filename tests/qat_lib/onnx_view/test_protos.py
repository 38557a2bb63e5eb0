"""The tensors and nodes of a graph and of its subgraphs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qat_lib.onnx_view.protos import (
    message_names,
    nodes_of,
    subgraphs_of,
    tensors_of,
    writers,
)


def tensor(name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(1, np.float32), name)


def sparse(name: str) -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.zeros(1, np.int64), f"{name} indices")
    return helper.make_sparse_tensor(tensor(name), indices, [1])


def body(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [], [tensor(f"in {name}")])


def nested() -> onnx.GraphProto:
    """A graph with subgraphs, in single and in list attributes."""
    innermost = helper.make_node("Inner", [], [], "innermost", inner=body("innermost"))
    first = helper.make_node("If", [], [], "first", branch=body("branch", innermost))
    second = helper.make_node("Any", [], [], "second", graphs=[body("left"), body("right")])
    graph = body("graph", first, second)
    graph.sparse_initializer.append(sparse("sparse"))
    return graph


def test_tensors_of_finds_all_that_a_graph_holds() -> None:
    graph = nested()
    graph.node.append(
        helper.make_node(
            "Constant",
            [],
            [],
            single=tensor("single"),
            several=[tensor("a"), tensor("b")],
            thin=sparse("thin"),
            number=1,
        )
    )
    found = sorted(each.name for each in tensors_of(graph))
    expected = ["a", "b", "in branch", "in graph", "in innermost", "in left", "in right", "single"]
    assert found == sorted([*expected, "sparse", "sparse indices", "thin", "thin indices"])


def test_nodes_and_graphs_inside_of_nodes() -> None:
    graph = nested()
    assert [node.name for node in nodes_of(graph.node)] == ["first", "innermost", "second"]
    assert [inner.name for inner in subgraphs_of(graph.node[0].attribute[0])] == ["branch"]
    assert [inner.name for inner in subgraphs_of(graph.node[1].attribute[0])] == ["left", "right"]
    assert subgraphs_of(helper.make_attribute("number", 1)) == []


def test_message_names_of_values_and_tensors() -> None:
    graph = body("graph")
    graph.input.add(name="x")
    assert message_names([*graph.input, *graph.initializer]) == ["x", "in graph"]


def test_writers_by_output() -> None:
    split = helper.make_node("Split", ["x"], ["a", "b"], "split")
    relu = helper.make_node("Relu", ["a"], ["y"], "relu")
    assert {name: node.name for name, node in writers([split, relu]).items()} == {
        "a": "split",
        "b": "split",
        "y": "relu",
    }
