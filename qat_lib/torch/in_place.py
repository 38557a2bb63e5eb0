"""Replace in-place operations, since each value of the graph has one name."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from qat_lib.graph.roles import torch_functions

OPERATORS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
VIEWS = torch_functions("range preserving")
"""Functions with results that may share the memory of their input."""


def assigned(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """Return a copy of ``x`` after ``x[index] = value``."""
    changed = x.clone()
    changed[index] = value
    return changed


def follow_in_place(traced: fx.GraphModule) -> None:
    """Redirect later readers of a value changed in place to the changed value.

    In-place functions are replaced by their out-of-place forms, so that a quantizer fits between
    any two operations; ``work_out_of_place`` does the same with modules. Changes of a view of
    another value are kept.
    """
    # Positions in execution order: only readers after the change see the new value.
    place = {node: number for number, node in enumerate(traced.graph.nodes)}
    for node in list(traced.graph.nodes):
        if not changes_its_input(traced, node) or _is_view(node.args[0]):
            continue
        for reader in list(node.args[0].users):
            if place[reader] > place[node]:
                reader.replace_input_with(node.args[0], node)
        _replace_function(node)


def work_out_of_place(traced: fx.GraphModule) -> None:
    """Switch modules to out-of-place operation, except on views of other values."""
    for node in traced.graph.nodes:
        if node.op == "call_module" and changes_its_input(traced, node):
            traced.get_submodule(str(node.target)).inplace = _is_view(node.args[0])


def changes_its_input(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node changes its first input in place."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return _has_underscore(str(node.target))
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    return node.target in OPERATORS or node.kwargs.get("inplace") is True or _has_underscore(name)


def _has_underscore(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and name != "requires_grad_"


def _is_view(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return False
    return getattr(node.target, "__name__", node.target) in VIEWS


def _replace_function(node: fx.Node) -> None:
    if node.op == "call_method":
        node.target = str(node.target).removesuffix("_")
    elif node.op == "call_function":
        target: Any = node.target
        name = getattr(target, "__name__", "").removesuffix("_")
        if target in OPERATORS:
            node.target = OPERATORS[target]
        elif _has_underscore(target.__name__):
            # Without an out-of-place form, the function remains as it is.
            node.target = getattr(functional, name, None) or getattr(torch, name, target)
        if "inplace" in node.kwargs:
            node.kwargs = {**node.kwargs, "inplace": False}
