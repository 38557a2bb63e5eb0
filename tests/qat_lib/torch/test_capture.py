"""Capturing a module: its arguments, its functions' names, its modes and types."""

from __future__ import annotations

import operator
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from qat_lib.errors import ExportError, UnsupportedModelError
from qat_lib.torch.capture import SCOPE, Example, capture, in_float32, name_functions


@pytest.mark.parametrize(("batch", "rows"), [(None, [0, 1]), (1, [0]), (5, [0, 1, 2, 0, 1])])
def test_example_has_the_requested_batch_size(batch: int | None, rows: list[int]) -> None:
    x = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    example = Example.of(x, batch=batch)
    assert len(example.args) == 1
    assert example.args[0].dtype == torch.float32
    assert torch.equal(example.args[0], x[rows].float())


def test_example_takes_positions_names_and_structures() -> None:
    x, count = torch.zeros(1, 2), torch.tensor(3)
    positional = Example.of((x, count, None), batch=None)
    assert [None if a is None else tuple(a.shape) for a in positional.args] == [(2, 2), (), None]
    named = Example.of({"a": x, "b": [x, x.long()]}, batch=4)
    assert named.args == ()
    assert [part.dtype for part in named.kwargs["b"]] == [torch.float32, torch.int64]
    assert named.kwargs["b"][0].shape == (4, 2)


def test_example_takes_mappings_of_any_class() -> None:
    tokens = UserDict({"x": torch.zeros(1, 2)})  # such as what a tokenizer of Hugging Face returns
    assert Example.of(tokens, batch=3).kwargs["x"].shape == (3, 2)


@pytest.mark.parametrize("given", [None, 3, [], {}, torch.zeros(0, 2)])
def test_example_needs_a_sample(given: Any) -> None:
    with pytest.raises(ExportError, match=r"Expected example_input: .*Received"):
        Example.of(given, batch=None)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.dense(x)) + x
        return y.view(x.size(0), 2, 2).transpose(1, 2)


def test_name_functions_names_modules_after_functions() -> None:
    traced = fx.symbolic_trace(Mixed())
    named = name_functions(traced)
    targets = [node.target for node in named.graph.nodes if node.op == "call_module"]
    names = [node.name for node in traced.graph.nodes if node.op not in ("placeholder", "output")]
    assert targets == ["dense" if name == "dense" else f"{SCOPE}{name}" for name in names]
    assert not [node for node in named.graph.nodes if node.op in ("call_function", "call_method")]
    x = torch.randn(3, 4)
    assert torch.equal(named(x), traced(x))
    assert named.dense is traced.dense
    assert [node.target for node in traced.graph.nodes].count(operator.add) == 1


def test_capture_leaves_batch_open_or_fixes_it() -> None:
    module, example = Mixed(), Example.of(torch.zeros(1, 4), batch=None)
    free = capture(module, example, batch=None)
    assert free.module()(torch.ones(7, 4)).shape == (7, 2, 2)
    fixed = capture(module, Example.of(torch.zeros(1, 4), batch=3), batch=3)
    (shape,) = [n.meta["val"].shape for n in fixed.graph.nodes if n.name == "x"]
    assert tuple(shape) == (3, 4)
    assert module.training


def test_capture_says_which_argument_does_not_fit() -> None:
    with pytest.raises(ExportError, match=r"example_input to fit forward\(x.*missing .*'x'"):
        capture(Mixed(), Example(kwargs={"y": torch.zeros(2, 4)}), batch=None)


def test_in_float32_copies_only_other_dtypes() -> None:
    module = nn.Linear(2, 2)
    assert in_float32(module) is module
    half = nn.Linear(2, 2).half()
    copied = in_float32(half)
    assert copied is not half
    assert copied.weight.dtype == torch.float32
    assert half.weight.dtype == torch.float16
    with pytest.raises(UnsupportedModelError, match="Received: list"):
        in_float32([module])
