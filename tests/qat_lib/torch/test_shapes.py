"""Shapes of a traced module's tensors, from an example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qat_lib.errors import UnsupportedModelError
from qat_lib.torch.graph import ModuleGraph
from qat_lib.torch.shapes import example_arguments, propagate_shapes
from qat_lib.torch.tracing import trace_module


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Any) -> Any:
        found, (hidden, _) = self.lstm(self.norm(x).permute(0, 2, 1))
        return found[:, -1], hidden


def test_shapes_of_all_tensors() -> None:
    module = Steps()
    traced = trace_module(module)
    propagate_shapes(traced, [torch.zeros(2, 4, 5)])
    graph = ModuleGraph(traced)
    assert graph.shapes["norm:0"] == (2, 4, 5)
    assert graph.shapes["permute:0"] == (2, 5, 4)
    assert graph.shapes["lstm:0"] == (2, 5, 3)
    assert graph.dtypes["lstm:0"] == "float32"
    assert graph.dtypes["lstm:1"] == "unknown"
    # No statistics were collected on the way.
    assert module.norm.num_batches_tracked == 0


def test_misfitting_example_leaves_shapes_unknown() -> None:
    traced = trace_module(Steps())
    propagate_shapes(traced, [torch.zeros(2, 7, 5)])
    graph = ModuleGraph(traced)
    assert "lstm:0" not in graph.shapes
    assert graph.dtypes["permute:0"] == "float32"


class Counting(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.argmax(-1) + 1


def test_data_types_are_those_of_the_tensors() -> None:
    traced = trace_module(Counting())
    propagate_shapes(traced, [torch.zeros(2, 3)])
    assert ModuleGraph(traced).dtypes == {
        "x:0": "float32",
        "argmax:0": "int64",
        "add:0": "int64",
    }


class Pair(nn.Module):
    def forward(self, left: Any, right: Any, scale: float = 1.0) -> Any:
        return (left + right) * scale


@pytest.mark.parametrize("example", [(1, 2), [1, 2], {"right": 2, "left": 1}])
def test_an_example_of_several_inputs(example: Any) -> None:
    assert list(example_arguments(Pair(), example).items()) == [("left", 1), ("right", 2)]


def test_an_example_may_have_arguments_with_a_default() -> None:
    named = {"scale": 3, "left": 1, "right": 2}
    assert list(example_arguments(Pair(), named)) == ["left", "right", "scale"]
    assert example_arguments(Pair(), (1, 2, 3)) == named


@pytest.mark.parametrize(
    ("example", "received"),
    [
        ({"left": 1, "scale": 2}, "left, scale"),
        ({"x": 1}, "x"),
        (3, "left"),
        ((1, 2, 3, 4), "left, right, scale, argument 4"),
    ],
)
def test_an_example_of_other_arguments_is_refused(example: Any, received: str) -> None:
    message = rf"Pair.forward: left, right, scale; .* Received: {received}\."
    with pytest.raises(UnsupportedModelError, match=message):
        example_arguments(Pair(), example)
