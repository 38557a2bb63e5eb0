"""Copies of layers: a new layer of the same configuration with the same weights, leaving the original as it is."""

from __future__ import annotations

from typing import Any

import keras

from qat_lib.errors import UnsupportedModelError


def clone_operation(operation: Any, name: str) -> Any:
    """Return a copy of a layer or operation under another name, with its weights where they exist already.

    Raises:
        UnsupportedModelError: the layer can't be made again from its configuration.
    """
    if not isinstance(operation, keras.layers.Layer):
        return _clone_plain(operation, name)
    if isinstance(operation, keras.layers.Lambda):
        # Lambda's configuration holds code, which safe mode refuses; in one process the function itself will do.
        return keras.layers.Lambda(
            operation.function,
            output_shape=operation._output_shape,
            mask=operation.mask,
            arguments=operation.arguments,
            name=name,
            dtype=operation.dtype_policy,
        )
    try:
        copy = type(operation).from_config({**operation.get_config(), "name": name})
    except Exception as error:  # a custom layer's from_config may raise anything
        raise UnsupportedModelError(
            f"{type(operation).__name__} {operation.name!r} can't be copied from its configuration: {error} "
            "Give the class a get_config that returns its constructor's arguments."
        ) from error
    if operation.built and (build_config := operation.get_build_config()):
        copy.build_from_config(build_config)
        copy_weights(operation, copy)
    return copy


def _clone_plain(operation: Any, name: str) -> Any:
    try:
        return type(operation).from_config({**operation.get_config(), "name": name})
    except Exception:  # a bare operation has no state, so the original serves as well  # noqa: BLE001
        return operation


def copy_weights(source: Any, target: Any) -> None:
    """Give ``target`` the values of every variable of ``source``, seeds of random generators included.

    Raises:
        UnsupportedModelError: the two do not have the same variables.
    """
    if not target.built or not source.variables:
        return
    shapes = [[tuple(v.shape) for v in layer.variables] for layer in (source, target)]
    if shapes[0] != shapes[1]:
        raise UnsupportedModelError(
            f"The copy of {type(source).__name__} {source.name!r} has other weights: expected shapes {shapes[0]}, "
            f"received {shapes[1]}. Give the class a get_config that returns its constructor's arguments."
        )
    for old, new in zip(source.variables, target.variables, strict=True):
        new.assign(old.value)
