"""Traits of Keras layers and operations."""

from __future__ import annotations

from typing import Any, Literal

from keras import layers

from qat_lib.graph.roles import TABLE, Role
from qat_lib.graph.traits import Support, Traits, Weights, is_fast_transposed
from qat_lib.keras.graph import layer_traits as known
from qat_lib.keras.graph.existing_quantizers import existing_quantizers
from qat_lib.keras.structure import layers_inside
from qat_lib.keras.wrappers import REGISTRY, BaseQuantizeWrapper, WeightedBaseQuantizeWrapper

# Classes of ``keras.layers`` with their roles.
_LAYERS: dict[type, frozenset[Role]] = {}
_OPERATORS: dict[str, frozenset[Role]] = {}
_FUNCTIONS: dict[str, frozenset[Role]] = {}
_OTHERS: dict[str, frozenset[Role]] = {}
for _row in TABLE:
    _LAYERS.update({getattr(layers, name): _row.roles for name in _row.layers})
    _OPERATORS.update(dict.fromkeys(_row.operators, _row.roles))
    _FUNCTIONS.update(dict.fromkeys(_row.functions, _row.roles))
    _OTHERS.update(dict.fromkeys(_row.others, _row.roles))


def traits_of(operation: Any, inputs: int) -> Traits:
    """Return the traits of a layer, operation or wrapped layer.

    Args:
        operation: the layer, the operation or the wrapper.
        inputs: number of input tensors.
    """
    core = unwrapped(operation)
    return Traits(
        class_name=type(operation).__name__,
        classes=type(operation).__mro__,
        kind=_kind(core),
        roles=_roles(core, inputs),
        activation=known.activation_of(core),
        own_activation=known.own_activation_of(core),
        is_input=isinstance(operation, layers.InputLayer),
        is_layer=isinstance(operation, layers.Layer),
        support=_support(operation),
        existing=existing_quantizers(operation, inputs),
        inside=_weighted_inside(operation),
    )


def unwrapped(operation: Any) -> Any:
    """Return the inner layer of a quantize wrapper, else the operation itself."""
    return operation.layer if isinstance(operation, BaseQuantizeWrapper) else operation


def _kind(core: Any) -> str:
    name = type(core).__name__
    if not isinstance(core, layers.Layer):
        return name
    # A subclass of a Keras layer has the kind of its nearest known base.
    for base in type(core).__mro__:
        if base in _LAYERS:
            return base.__name__
    return name if name in _OTHERS else ""


def _roles(core: Any, inputs: int) -> frozenset[Role]:
    """Return the roles from the table, corrected by the configuration of the layer."""
    roles = _roles_in_table(core)
    is_merge = roles >= {"merge", "sign preserving"}
    by_configuration: dict[Role, bool] = {
        "identity": known.is_identity(core),
        "range preserving": known.preserves_range(core),
        "wide maximum": known.is_wide_maximum(core),
        "affine": known.is_affine(core, inputs),
        "depthwise": known.is_depthwise(core),
        "non-negative": known.is_never_negative(core),
        "sign preserving": is_merge or known.is_smooth(core),
    }
    for role, holds in by_configuration.items():
        if holds:
            roles.add(role)
        else:
            roles.discard(role)
    return frozenset(roles)


def _roles_in_table(core: Any) -> set[Role]:
    is_layer = isinstance(core, layers.Layer)
    roles: set[Role] = set(_OTHERS.get(type(core).__name__, ()))
    activation = known.activation_of(core)
    if activation is not None:
        roles.update(_FUNCTIONS.get(activation, ()))
        roles.add("activation layer")
    elif is_layer:
        # Subclasses have the roles of their bases.
        for base in type(core).__mro__:
            roles.update(_LAYERS.get(base, ()))
    else:
        roles.update(_OPERATORS.get(type(core).__name__, ()))
    if not is_layer:
        roles.discard("activation layer")
    return roles


def _support(operation: Any) -> Support | None:
    wrapper = REGISTRY.find(type(operation))
    if wrapper is None:
        return None

    def plan_weights() -> Weights:
        if not issubclass(wrapper, WeightedBaseQuantizeWrapper):
            return {}
        weights: Weights = wrapper(operation).planned_weights()
        return weights

    return Support(
        quantize_input=wrapper.default_quantize_input,
        quantize_weight=wrapper.default_quantize_weight,
        plan_weights=plan_weights,
        internal=wrapper.internal_names,
        pairs=_pairs(operation),
        channels=_channels(operation),
        on_vnni=isinstance(operation, known.TRANSPOSED)
        and is_fast_transposed(
            operation.kernel_size, operation.strides, operation.dilation_rate, groups=1
        ),
    )


def _pairs(operation: Any) -> Literal["last", "unknown"] | None:
    """Return ``Support.pairs`` of a layer, for Keras layouts with output channels last."""
    if known.is_depthwise(operation):
        return None
    groups = getattr(operation, "groups", 1)
    if groups == 1 or not isinstance(operation, known.WEIGHTED):
        return "last"
    channels = operation.kernel.shape[-2] if operation.built else None
    if channels is None:
        return "unknown"
    if channels == 1:
        return None
    # Kernels compute such a group as one matrix product over its whole window.
    return "unknown" if channels % 2 else "last"


def _channels(operation: Any) -> int | None:
    """Return ``Support.channels`` of a layer."""
    is_plain = (
        isinstance(operation, (layers.Conv1D, layers.Conv2D, layers.Conv3D))
        and operation.groups == 1
    )
    return int(operation.kernel.shape[-2]) if is_plain and operation.built else None


def _weighted_inside(operation: Any) -> tuple[str, ...]:
    if not isinstance(operation, layers.Layer):
        return ()
    return tuple(x.name for x in layers_inside(operation) if isinstance(x, known.WEIGHTED))
