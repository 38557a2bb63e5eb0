"""Names of what torch.fx nodes call.

Functions, methods and operators share one name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import fx
from torch.nn import functional

ATTRIBUTES = {"T": "transpose", "mT": "transpose", "H": "transpose", "mH": "transpose"}
"""Attributes of a tensor that are tensors."""
OPERATORS = {"truediv": "div", "subtract": "sub", "multiply": "mul", "divide": "div"}
CLAMPS = ("clamp", "clip", "hardtanh")


def function_name(node: fx.Node) -> str:
    """Return the name of a node's function, method or operator."""
    target: Any = node.target
    name = str(target if node.op == "call_method" else getattr(target, "__name__", target))
    if target is getattr:
        return ATTRIBUTES.get(str(node.args[1]), "getattr")
    if not name.startswith("_"):
        name = name.removesuffix("_")
    name = OPERATORS.get(name, name)
    # Of two tensors they are an operator, of one a reduction.
    is_pair = len([arg for arg in node.args if isinstance(arg, fx.Node)]) == 2
    return {"max": "maximum", "min": "minimum"}.get(name, name) if is_pair else name


def arguments(node: fx.Node) -> Mapping[str, Any]:
    """Return a node's function arguments, by name as far as known."""
    name = function_name(node)
    known = _SIGNATURES.get(name)
    if known is None and hasattr(functional, name):
        try:
            known = tuple(inspect.signature(getattr(functional, name)).parameters)
        except (TypeError, ValueError):  # a builtin, or one that dispatches
            known = None
    return {**dict(zip(known or (), node.args, strict=False)), **node.kwargs}


_SIGNATURES = {
    **dict.fromkeys(("clamp", "clip"), ("input", "min", "max")),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d"), ("input", "kernel_size", "stride", "padding")
    ),
    "hardtanh": ("input", "min_val", "max_val"),
    "mean": ("input", "dim", "keepdim"),
    "pad": ("input", "pad", "mode", "value"),
}


def clamp_activation(low: Any, high: Any) -> str | None:
    """Return the activation function that cutting at two bounds is."""
    if low == 0 and high is None:
        return "relu"
    # A ReLU with any upper bound; the kernels take any.
    return "relu6" if low == 0 and isinstance(high, int | float) else None


def clamp_bounds(node: fx.Node) -> tuple[Any, Any]:
    """Return the bounds that a node clamps its input to.

    None = no bound.
    """
    given = arguments(node)
    if function_name(node) == "hardtanh":
        return given.get("min_val", -1.0), given.get("max_val", 1.0)
    return given.get("min"), given.get("max")
