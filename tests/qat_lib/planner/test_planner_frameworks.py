"""The planner on framework-free graphs: it needs only operation facts."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hand_made_graphs import (
    HandMadeGraph,
    concatenation,
    convolution,
    pool,
    quantizer,
    relu,
    residual_graph,
    traits,
)

from qat_lib import QuantizationSpec
from qat_lib.core.plan import QuantizationPlan
from qat_lib.errors import SpecError
from qat_lib.planner.planner import plan_graph
from qat_lib.planner.request import PlanRequest

WITHOUT_FRAMEWORKS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("keras", "tensorflow", "torch"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import qat_lib.core.plan_index
from qat_lib.custom_qdq_cases import TensorRTQDQCase
from qat_lib.planner import plan_quantization
from qat_lib.core.selection import Selector
from hand_made_graphs import residual_graph
from qat_lib.planner.planner import plan_graph
from qat_lib.planner.request import PlanRequest
plan = plan_graph(residual_graph(), PlanRequest.of("full", None, None, unsigned=True))
print(len(plan.quantizers))
"""


def planned(graph: HandMadeGraph, *, unsigned: bool = False) -> QuantizationPlan:
    return plan_graph(graph, PlanRequest.of("full", None, None, unsigned=unsigned))


def test_planner_needs_no_framework() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FRAMEWORKS],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout == f"{len(planned(residual_graph()).quantizers)}\n", done.stderr


def test_plan_graph_of_a_residual_network() -> None:
    graph = residual_graph()
    plan = planned(graph)
    assert graph.refused == 1
    tensors = [entry.tensor for entry in plan.by_kind("activation")]
    assert tensors == ["x:0", "pool:0", "conv_a:0", "sum:0"]
    assert {entry.tensor for entry in plan.by_kind("weight")} == {
        *("stem/kernel", "conv_a/kernel", "conv_b/kernel", "head/kernel")
    }
    assert {skipped.layer: skipped.reason for skipped in plan.skipped} == {
        "relu": "range-preserving",
        "pool": "range-preserving",
        "sum": "off by default",
    }


def test_plan_graph_ties_what_meets_in_concatenate() -> None:
    graph = HandMadeGraph("x")
    graph.add("conv_a", convolution(), "x")
    graph.add("conv_b", convolution(), "x")
    graph.add("join", concatenation(), "conv_a", "conv_b")
    graph.add("head", convolution(), "join")
    spec = QuantizationSpec().add("join")
    plan = plan_graph(graph, PlanRequest.of("full", spec, None, unsigned=False))
    groups = {entry.tensor: entry.group for entry in plan.by_kind("activation")}
    tied = "conv_a:0 (Concatenate)"
    assert groups == {"x:0": None, "conv_a:0": tied, "conv_b:0": tied, "join:0": tied}


def test_plan_graph_unsigned_behind_a_relu() -> None:
    plan = planned(residual_graph(), unsigned=True)
    unsigned = {entry.tensor for entry in plan.by_kind("activation") if entry.unsigned}
    assert unsigned == {"pool:0"}


def test_plan_graph_keeps_existing_quantizer() -> None:
    graph = HandMadeGraph("x")
    options = SimpleNamespace(num_bits=6, unsigned=False, calibrator="mse", range_policy="frozen")
    graph.add("mine", quantizer(options), "x")
    graph.add("conv", convolution(), "mine")
    graph.add("other", convolution(), "x")
    (entry,) = planned(graph).by_kind("activation")
    assert (entry.name, entry.tensor, entry.num_bits) == ("mine", "x:0", 6)
    assert (entry.calibrator, entry.range_policy) == ("mse", "frozen")
    assert {consumer.layer for consumer in entry.consumers} == {"mine", "other"}


def test_plan_graph_says_why_layer_is_float() -> None:
    graph = HandMadeGraph("x")
    graph.add("gates", traits("Gates", obstacle="its gates are one kernel"), "x")
    graph.add("block", traits("Block", inside=("a", "b", "c", "d", "e")), "gates")
    graph.add("pool", pool(), "block")
    graph.add("relu", relu(), "pool")
    details = {skipped.layer: skipped.detail for skipped in planned(graph).skipped}
    assert details["gates"] == "runs in float: its gates are one kernel"
    inside = "with the weights of a, b, c, d and 1 more inside; buy Block to quantize them"
    assert details["block"] == f"runs in float, {inside}"
    spec = QuantizationSpec().add("gates").add("block")
    plan = plan_graph(graph, PlanRequest.of("full", spec, None, unsigned=False))
    named = {skipped.layer: (skipped.reason, skipped.detail) for skipped in plan.skipped}
    assert named["gates"] == ("unsupported", "its gates are one kernel")
    assert named["block"] == ("unsupported", "no kit for Block; buy Block to add one")


def test_plan_graph_refuses_class_by_catalog() -> None:
    spec = QuantizationSpec().add("Convolv", is_keras_class=True)
    request = PlanRequest.of("full", spec, None, unsigned=False)
    expected = r"No kit supports the layer class 'Convolv'. Did you mean Convolve\? Buy one for"
    with pytest.raises(SpecError, match=expected):
        plan_graph(residual_graph(), request)
    by_class = QuantizationSpec().add("Convolve", is_keras_class=True, quantize_input=False)
    plan = plan_graph(residual_graph(), PlanRequest.of("full", by_class, None, unsigned=False))
    assert plan.by_kind("activation") == []
