"""Roles of operations: one table for Keras, TensorFlow, PyTorch and ONNX.

The planner, the cases, the lowering passes, the analysis, the engines and the report query the
table, so that they agree on the meaning of Keras and ONNX names. A set that differs from a role
states the difference at its definition.

This package imports neither Keras nor ONNX: names are strings, and
``qat_lib.keras.graph.layer_traits`` resolves the names of layers to classes.
"""

from __future__ import annotations

from qat_lib.graph.roles.operation import Operation, Role
from qat_lib.graph.roles.table import TABLE

__all__ = [
    "ARITHMETIC",
    "PAIR",
    "TABLE",
    "Operation",
    "Role",
    "activation_functions",
    "keras_operators",
    "layer_names",
    "onnx_operators",
    "other_layers",
    "rows",
    "tensorflow_operators",
    "torch_functions",
]


def onnx_operators(role: Role, *more: Role) -> frozenset[str]:
    """Return the ONNX operators with all roles."""
    return frozenset(_names("onnx", role, *more))


def layer_names(role: Role, *more: Role) -> tuple[str, ...]:
    """Return the ``keras.layers`` classes with all roles, in table order."""
    return tuple(_names("layers", role, *more))


def keras_operators(role: Role, *more: Role) -> frozenset[str]:
    """Return the bare Keras operation classes with all roles."""
    return frozenset(_names("operators", role, *more))


def activation_functions(role: Role, *more: Role) -> frozenset[str]:
    """Return the Keras activation functions with all roles."""
    return frozenset(_names("functions", role, *more))


def other_layers(role: Role, *more: Role) -> frozenset[str]:
    """Return the layer classes of model libraries with all roles."""
    return frozenset(_names("others", role, *more))


def tensorflow_operators(role: Role, *more: Role) -> frozenset[str]:
    """Return the TensorFlow operators with all roles."""
    return frozenset(_names("tensorflow", role, *more))


def torch_functions(role: Role, *more: Role) -> frozenset[str]:
    """Return PyTorch's functions, methods and operators with all roles."""
    return frozenset(_names("torch", role, *more))


def _names(column: str, role: Role, *more: Role) -> list[str]:
    names: list[str] = []
    for row in rows(role, *more):
        names.extend(getattr(row, column))
    return names


def rows(role: Role, *more: Role) -> tuple[Operation, ...]:
    """Return the operations with all roles."""
    wanted = {role, *more}
    return tuple(row for row in TABLE if wanted <= row.roles)


PAIR = onnx_operators("pair")
ARITHMETIC = onnx_operators("arithmetic", "broadcasting")
"""ONNX's operators with two operands: Add, Sub, Mul and Div."""
