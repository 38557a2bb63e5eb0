"""What nodes call, by one name for functions, methods and operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F  # noqa: N812

from qat_lib.torch.functions import arguments, clamp_activation, clamp_bounds, function_name


def node_of(function: Any) -> fx.Node:
    """Return the node of what a function of a tensor calls."""
    nodes = fx.symbolic_trace(function).graph.nodes
    return [node for node in nodes if node.op.startswith("call")][-1]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x + 1, "add"),
        (lambda x: torch.add(x, 1), "add"),
        (lambda x: x.add_(1), "add"),
        (lambda x: x / 2, "div"),
        (lambda x: torch.relu_(x), "relu"),
        (lambda x: x @ x, "matmul"),
        (lambda x: torch.max(x, x), "maximum"),
        (lambda x: torch.max(x), "max"),
        (lambda x: x.min(x), "minimum"),
        (lambda x: x.mT, "transpose"),
        (lambda x: x.shape, "getattr"),
        (lambda x: F.max_pool2d(x, 2), "max_pool2d"),
        (lambda x: F.gelu(x), "gelu"),
        (lambda x: x[0], "getitem"),
    ],
)
def test_function_name(function: Any, name: str) -> None:
    assert function_name(node_of(function)) == name


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: F.max_pool2d(x, 3, stride=2), {"kernel_size": 3, "stride": 2}),
        (lambda x: x.mean((2, 3), keepdim=True), {"dim": (2, 3), "keepdim": True}),
        (lambda x: F.interpolate(x, None, 2, "bilinear"), {"mode": "bilinear"}),
        (lambda x: F.pad(x, (1, 1), value=4.0), {"value": 4.0}),
        (lambda x: torch.add(x, x, alpha=2), {"alpha": 2}),
    ],
)
def test_arguments_by_name(function: Any, expected: dict[str, Any]) -> None:
    found = arguments(node_of(function))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("function", "bounds", "activation"),
    [
        (lambda x: x.clamp(0, 6), (0, 6), "relu6"),
        (lambda x: torch.clip(x, min=0), (0, None), "relu"),
        (lambda x: x.clamp(max=1), (None, 1), None),
        (lambda x: F.hardtanh(x), (-1.0, 1.0), None),
        (lambda x: F.hardtanh(x, 0.0, 4.0), (0.0, 4.0), "relu6"),
    ],
)
def test_clamps(function: Any, bounds: tuple[Any, Any], activation: str | None) -> None:
    assert clamp_bounds(node_of(function)) == bounds
    assert clamp_activation(*bounds) == activation
