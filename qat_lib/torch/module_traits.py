"""Traits of PyTorch's modules and functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import fx, nn
from torch.nn import modules as float_nn
from torch.nn.parameter import UninitializedParameter

from qat_lib.graph.roles import TABLE, Operation, Role
from qat_lib.graph.traits import WIDE_WINDOW, Support, Traits, Weights, is_fast_transposed
from qat_lib.torch.existing_quantizers import existing_quantizers
from qat_lib.torch.functions import (
    CLAMPS,
    arguments,
    clamp_activation,
    clamp_bounds,
    function_name,
)

SUPPORTED: frozenset[Role] = frozenset(
    ("merge", "average pool", "max pool", "normalization", "activation layer", "growing")
)
"""Roles of operations with inputs that a spec or a case can quantize."""
SUPPORTED_KINDS = ("BatchNormalization", "Subtract")
SMOOTH = ("linear", "bilinear", "trilinear", "area")
"""Interpolations within the range of their input; cubic ones overshoot."""
NEAREST = ("nearest", "nearest-exact")


@dataclass(frozen=True, kw_only=True)
class _Known:
    """Entry of the table: roles, name of the Keras layer, name of the activation function."""

    roles: frozenset[Role]
    kind: str
    activation: str | None


def _known(row: Operation, number: int, name: str) -> _Known:
    kind = row.layers[min(number, len(row.layers) - 1)] if row.layers else name
    is_activation = "activation" in row.roles and number < len(row.functions)
    roles: set[Role] = set(row.roles)
    if is_activation:
        roles.add("activation layer")
    activation = row.functions[number] if is_activation else None
    return _Known(roles=frozenset(roles), kind=kind, activation=activation)


_MODULES: dict[type, _Known] = {}
_FUNCTIONS: dict[str, _Known] = {}
_ACTIVATIONS: dict[str, _Known] = {}
_OTHERS: dict[str, _Known] = {}
for _row in TABLE:
    for _number, _name in enumerate(_row.modules):
        _MODULES[getattr(float_nn, _name)] = _known(_row, _number, _name)
    for _number, _name in enumerate(_row.torch):
        _FUNCTIONS[_name] = _known(_row, _number, _name)
    for _number, _name in enumerate(_row.functions):
        _ACTIVATIONS[_name] = _known(_row, _number, _name)
    for _name in _row.others:
        _OTHERS[_name] = _Known(roles=_row.roles, kind=_name, activation=None)
_UNKNOWN = _Known(roles=frozenset(), kind="", activation=None)

OTHER_WEIGHT = "its weight is computed or shared; give it a parameter of its own"
INPUT = Traits(class_name="placeholder", is_input=True, is_layer=False)


def module_traits(module: nn.Module, inputs: int) -> Traits:
    """Return the traits of a module that is one graph operation.

    Args:
        module: the module.
        inputs: number of its input tensors.
    """
    known = _module_in_table(module)
    if isinstance(module, nn.Hardtanh) and known is _UNKNOWN:
        known = _activation(clamp_activation(module.min_val, module.max_val))
    roles = _roles(known, inputs, _module_options(module))
    if _is_depthwise(module):
        roles |= {"depthwise"}
    obstacle = _obstacle(module, roles)
    return Traits(
        class_name=type(module).__name__,
        classes=type(module).__mro__,
        kind=known.kind,
        roles=roles,
        activation=known.activation,
        support=_module_support(module, known, roles) if not obstacle else None,
        existing=existing_quantizers(module),
        inside=_weighted_inside(module),
        obstacle=obstacle,
    )


def function_traits(node: fx.Node, inputs: int, rank: int | None) -> Traits:
    """Return the traits of a function, method or operator.

    Args:
        node: the calling node.
        inputs: number of its input tensors.
        rank: number of dimensions of its first input; None = unknown.
    """
    name, options = function_name(node), arguments(node)
    known = _function_in_table(node, inputs, rank)
    roles = _roles(known, inputs, options)
    is_weighted = "weighted" in roles
    return Traits(
        class_name=name,
        classes=(name,),
        kind=known.kind,
        roles=roles,
        activation=known.activation,
        is_layer=False,
        support=None if is_weighted else _inputs_support(known, roles),
        obstacle=OTHER_WEIGHT if is_weighted else "",
    )


def is_known(name: str) -> bool:
    """Return whether a torch.nn class or function name is in the table."""
    return getattr(float_nn, name, None) in _MODULES or name in _FUNCTIONS


def known_names() -> list[str]:
    """Return the names of all classes and functions in the table."""
    return sorted({*(cls.__name__ for cls in _MODULES), *_FUNCTIONS})


def _module_in_table(module: nn.Module) -> _Known:
    for base in type(module).__mro__:
        if base in _MODULES:
            return _MODULES[base]
    return _OTHERS.get(type(module).__name__, _UNKNOWN)


def _function_in_table(node: fx.Node, inputs: int, rank: int | None) -> _Known:
    name, options = function_name(node), arguments(node)
    known = _FUNCTIONS.get(name, _UNKNOWN)
    if name in CLAMPS:
        return _activation(clamp_activation(*clamp_bounds(node)))
    if name == "mean":
        is_pool = _is_over_an_image(options.get("dim"), rank)
        return replace(known, kind="GlobalAveragePooling2D") if is_pool else _UNKNOWN
    is_scaled_sum = name in ("add", "sub") and options.get("alpha", 1) != 1
    takes_elements = name == "getitem" and inputs > 1
    return _UNKNOWN if is_scaled_sum or takes_elements else known


def _activation(name: str | None) -> _Known:
    return _UNKNOWN if name is None else _ACTIVATIONS[name]


def _module_options(module: nn.Module) -> Mapping[str, Any]:
    """Return the settings of a module, with the names of the function's arguments."""
    options = {}
    for name in ("kernel_size", "mode", "value", "scale_factor"):
        if hasattr(module, name):
            options[name] = getattr(module, name)
    return options


def _roles(known: _Known, inputs: int, options: Mapping[str, Any]) -> frozenset[Role]:
    """Return the roles of the table, adjusted to the arguments."""
    roles: set[Role] = set(known.roles)
    mode = options.get("mode")
    is_resize = known.kind.startswith("UpSampling")
    if known.activation == "relu" or "identity" in roles:
        roles.add("range preserving")
    if is_resize and mode not in (None, *NEAREST):
        roles.discard("range preserving")
        if mode in SMOOTH:
            roles.add("sign preserving")
    elif mode in (None, "constant") and options.get("value"):
        roles.discard("range preserving")  # a pad with a non-zero constant
    if "max pool" in roles and _window(options, known.kind) >= WIDE_WINDOW:
        roles.add("wide maximum")
    if "average pool" in roles:
        roles.add("sign preserving")
    # One tensor input: the other operand is a number or a parameter.
    if "arithmetic" in roles and inputs == 1:
        roles.add("affine")
    return frozenset(roles)


def _window(options: Mapping[str, Any], kind: str) -> int:
    """Return the number of inputs of a pooling for each output."""
    size = options.get("kernel_size", 1)
    dimensions = int(kind[-2]) if kind.startswith("MaxPooling") else 0
    sizes = size if isinstance(size, tuple | list) else [size] * dimensions
    # A computed size is usually that of the whole tensor.
    return math.prod(sizes) if all(isinstance(x, int) for x in sizes) else WIDE_WINDOW


def _is_depthwise(module: nn.Module) -> bool:
    groups = getattr(module, "groups", 1)
    channels = (getattr(module, "in_channels", 0), getattr(module, "out_channels", 0))
    return groups > 1 and groups in channels


def _is_over_an_image(dims: Any, rank: int | None) -> bool:
    """Return whether ``dims`` are all axes behind batch and channels."""
    if isinstance(dims, int):
        dims = (dims,)
    if not isinstance(dims, tuple | list) or not all(isinstance(d, int) for d in dims):
        return False
    # Without a rank, assume images or volumes.
    if rank is None:
        return sorted(dims) in ([2, 3], [-2, -1], [2, 3, 4], [-3, -2, -1])
    return rank > 2 and sorted(d % rank for d in dims) == list(range(2, rank))


def _obstacle(module: nn.Module, roles: frozenset[Role]) -> str:
    """Return the reason that a module can't be quantized; empty if it can."""
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "its gates are one kernel; qat_lib.torch.nn has a QuantLSTM and a QuantLSTMCell"
    if "attention" in roles:
        return "its projections and products are one function"
    if "weighted" not in roles:
        return ""
    # Not getattr: a parametrization replaces the parameter by a computed property.
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed from others; remove the parametrization first"
    if isinstance(weight, UninitializedParameter):
        return "it has no weight yet; call the model once"
    return ""


def _module_support(module: nn.Module, known: _Known, roles: frozenset[Role]) -> Support | None:
    if "weighted" not in roles:
        return _inputs_support(known, roles)
    axis = 1 if "transposed" in roles else 0
    # Supported on request, but off by default.
    is_on = "transposed" not in roles  # unreliable in TensorRT

    def plan_weights() -> Weights:
        return {"weight": (axis,)}

    layer: Any = module
    is_plain = "convolution" in roles and getattr(module, "groups", 0) == 1
    return Support(
        quantize_input=is_on,
        quantize_weight=is_on,
        plan_weights=plan_weights,
        pairs=_pairs(module, roles),
        channels=getattr(module, "in_channels", None) if is_plain else None,
        on_vnni="transposed" in roles
        and is_fast_transposed(layer.kernel_size, layer.stride, layer.dilation, layer.groups),
    )


def _pairs(module: nn.Module, roles: frozenset[Role]) -> Literal["first", "unknown"] | None:
    """Return ``Support.pairs`` of a module in PyTorch's layout, output channels first."""
    groups = getattr(module, "groups", 1)
    if groups == 1:
        return "first"
    channels = getattr(module, "in_channels", groups) // groups
    if channels == 1:
        return None
    # The weight of a transposed convolution contains the input channels of all groups; kernels
    # compute groups of odd size as one matrix product over the whole window.
    return "unknown" if channels % 2 or "transposed" in roles else "first"


def _inputs_support(known: _Known, roles: frozenset[Role]) -> Support | None:
    if "average pool" in roles:
        return Support(quantize_input=True)
    is_supported = bool(roles & SUPPORTED) or known.kind in SUPPORTED_KINDS
    return Support() if is_supported else None


def _weighted_inside(module: nn.Module) -> tuple[str, ...]:
    inside = []
    for name, child in module.named_modules():
        if child is not module and "weighted" in _module_in_table(child).roles:
            inside.append(name)
    return tuple(inside)
