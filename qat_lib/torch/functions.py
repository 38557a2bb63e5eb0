"""Names of the functions, methods and operators called by torch.fx nodes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import fx
from torch.nn import functional

ATTRIBUTES = {"T": "transpose", "mT": "transpose", "H": "transpose", "mH": "transpose"}
"""Functions equivalent to tensor attributes."""
OPERATORS = {"truediv": "div", "subtract": "sub", "multiply": "mul", "divide": "div"}
CLAMPS = ("clamp", "clip", "hardtanh")


def function_name(node: fx.Node) -> str:
    """Return the name of a node's function, method or operator."""
    target: Any = node.target
    name = str(target if node.op == "call_method" else getattr(target, "__name__", target))
    if target is getattr:
        return ATTRIBUTES.get(str(node.args[1]), "getattr")
    if not name.startswith("_"):
        # In-place methods end in an underscore, such as add_.
        name = name.removesuffix("_")
    name = OPERATORS.get(name, name)
    # max and min of two tensors are elementwise, of one tensor a reduction.
    is_pair = len([arg for arg in node.args if isinstance(arg, fx.Node)]) == 2
    return {"max": "maximum", "min": "minimum"}.get(name, name) if is_pair else name


def arguments(node: fx.Node) -> Mapping[str, Any]:
    """Return the arguments of a node's function by name, as far as known."""
    name = function_name(node)
    known = _SIGNATURES.get(name)
    if known is None and hasattr(functional, name):
        try:
            known = tuple(inspect.signature(getattr(functional, name)).parameters)
        except (TypeError, ValueError):  # a builtin without a signature
            known = None
    return {**dict(zip(known or (), node.args, strict=False)), **node.kwargs}


_SIGNATURES = {
    **dict.fromkeys(("clamp", "clip"), ("input", "min", "max")),
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d"), ("input", "kernel_size", "stride", "padding")
    ),
    "hardtanh": ("input", "min_val", "max_val"),
    "linear": ("input", "weight", "bias"),
    "addmm": ("bias", "input", "weight"),
    "matmul": ("input", "weight"),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"),
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    ),
    "mean": ("input", "dim", "keepdim"),
    "pad": ("input", "pad", "mode", "value"),
}


def clamp_activation(low: Any, high: Any) -> str | None:
    """Return the activation function equivalent to a clamp; None for other bounds."""
    if low == 0 and high is None:
        return "relu"
    # Any upper bound: the kernels do not require 6.
    return "relu6" if low == 0 and isinstance(high, int | float) else None


def clamp_bounds(node: fx.Node) -> tuple[Any, Any]:
    """Return the bounds of a node that clamps its input; None = no bound."""
    given = arguments(node)
    if function_name(node) == "hardtanh":
        return given.get("min_val", -1.0), given.get("max_val", 1.0)
    return given.get("min"), given.get("max")
