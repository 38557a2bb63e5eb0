"""The graph of calls, whichever framework its model is of."""

from types import SimpleNamespace

import pytest
from hand_made_graphs import HandMadeGraph, convolution, pool, quantizer, relu, residual_graph


def test_call_graph_producers_and_consumers() -> None:
    graph = residual_graph()
    assert graph.producer("pool:0").name == "pool"
    readers = graph.consumers("pool:0")
    assert [(call.name, index) for call, index in readers] == [("conv_a", 0), ("sum", 1)]
    assert graph.consumers("head:0") == []
    with pytest.raises(KeyError):
        graph.producer("gone:0")


def test_call_graph_order_follows_calls() -> None:
    order = residual_graph().order
    assert sorted(order, key=order.__getitem__)[:3] == ["x:0", "stem:0", "relu:0"]


def test_call_graph_shared_layers() -> None:
    graph = HandMadeGraph("x")
    graph.add("conv", convolution(), "x")
    graph.add("conv@1", convolution(), "conv")
    assert [name for name, _ in graph.layers()] == ["x", "conv"]
    assert [call.name for call in graph.first_calls()] == ["x", "conv"]
    assert [call.name for call in graph.calls_of("conv")] == ["conv", "conv@1"]
    assert graph.by_name["conv@1"].layer == "conv"


def test_quantizer_on_looks_through_grid_preserving_layers() -> None:
    graph = HandMadeGraph("x")
    graph.add("quantizer", quantizer(SimpleNamespace(unsigned=False)), "x")
    graph.add("pool", pool(), "quantizer")
    graph.add("relu", relu(), "pool")
    graph.add("conv", convolution(), "relu")
    found = graph.quantizer_on("relu:0")
    assert found is not None
    assert found.name == "quantizer"
    assert graph.quantizer_on("conv:0") is None
    assert graph.quantizer_on("x:0") is None


def test_call_graph_repr() -> None:
    assert repr(residual_graph()) == "<HandMadeGraph of 'hand_made': 8 calls>"
