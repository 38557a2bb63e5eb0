"""Plan lookup by a model's parts, and its checks, framework-free."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hand_made_graphs import HandMadeGraph, convolution, pool, quantizer, residual_graph

from qat_lib.core.plan import Consumer, QuantizationPlan, QuantizerEntry
from qat_lib.core.plan_index import PlanIndex
from qat_lib.errors import PlanError
from qat_lib.planner.planner import plan_graph
from qat_lib.planner.request import PlanRequest


def plan_of(graph: HandMadeGraph) -> QuantizationPlan:
    return plan_graph(graph, PlanRequest.of("full", None, None, unsigned=False))


def test_index_finds_entries_by_reader_and_layer() -> None:
    graph = residual_graph()
    index = PlanIndex.of(plan_of(graph), graph)
    assert index.reads["conv_a", 0].tensor == "pool:0"
    assert ("sum", 0) not in index.reads
    assert [entry.tensor for entry in index.of_layer["head"]] == ["head/kernel"]
    assert index.wrapped == {"stem", "conv_a", "conv_b", "head"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": "gone:0"}, "names the tensor 'gone:0', which the model does not have"),
        ({"name": "conv_a"}, "calls a quantizer 'conv_a', as a layer of the model is called"),
        ({"consumers": (Consumer(layer="gone", input=0),)}, "the model has no such input"),
        ({"consumers": (Consumer(layer="sum", input=2),)}, "the model has no such input"),
        ({"consumers": (Consumer(layer="sum", input=0),)}, "reads another tensor, 'conv_b:0'"),
        ({"kind": "weight", "tensor": "gone/kernel"}, "names the layer 'gone'"),
        ({"kind": "weight", "tensor": "head/kernel", "unsigned": True}, "only activations can be"),
    ],
)
def test_index_refuses_a_plan_of_another_model(change: dict[str, Any], message: str) -> None:
    graph = residual_graph()
    plan = plan_of(graph)
    entry = next(e for e in plan.quantizers if e.tensor == "pool:0")
    wrong = replace(plan, quantizers=(replace(entry, **change),))
    with pytest.raises(PlanError, match=message):
        PlanIndex.of(wrong, graph)


def test_index_refuses_two_quantizers_on_a_tensor() -> None:
    graph = residual_graph()
    plan = plan_of(graph)
    double = replace(plan.quantizers[0], name="again")
    with pytest.raises(PlanError, match="two quantizers on the tensor 'x:0'"):
        PlanIndex.of(replace(plan, quantizers=(*plan.quantizers, double)), graph)


def test_arriving_finds_what_replaces_a_quantizer() -> None:
    graph = HandMadeGraph("x")
    graph.add("conv", convolution(), "x")
    graph.add("pool", pool(), "conv")
    graph.add("mine", quantizer(SimpleNamespace()), "pool")
    graph.add("other", quantizer(SimpleNamespace()), "x")
    entry = QuantizerEntry(
        name="conv_quantizer",
        kind="activation",
        tensor="conv:0",
        consumers=(Consumer(layer="pool", input=0),),
    )
    plan = QuantizationPlan(model="hand_made", mode="full", quantizers=(entry,), skipped=())
    index = PlanIndex.of(plan, graph)
    assert index.arriving(graph, graph.by_name["mine"], 0) is entry
    assert index.arriving(graph, graph.by_name["other"], 0) is None
    assert index.arriving(graph, graph.by_name["pool"], 0) is None
