"""Copies of layers with the same configuration and state."""

from __future__ import annotations

import tempfile
import warnings
from inspect import isfunction
from typing import Any

import keras

from qat_lib.errors import QatlineError, UnsupportedModelError
from qat_lib.keras.structure import layers_of
from qat_lib.support.foreign_errors import describe_error


def clone_operation(operation: Any, name: str) -> Any:
    """Return a copy of a layer or operation, built if Keras stores how to build it.

    ``copy_state`` fills the copy. A layer without state that can't be copied is returned itself.

    Raises:
        UnsupportedModelError: the layer can't be copied.
    """
    if not isinstance(operation, keras.layers.Layer):
        try:
            return type(operation).from_config({**operation.get_config(), "name": name})
        # A bare operation has no state, so the original can be reused.
        except Exception:  # noqa: BLE001
            return operation
    if isinstance(operation, keras.layers.Lambda):
        # The configuration of a Lambda contains code, which safe mode rejects; within one process,
        # the function itself can be reused.
        return keras.layers.Lambda(
            operation.function,
            output_shape=operation._output_shape,
            mask=operation.mask,
            arguments=operation.arguments,
            name=name,
            dtype=operation.dtype_policy,
        )
    if (twin := _made_again(operation, name)) is operation:
        return operation
    # A layer without a ``build`` method is built by its first call.
    has_build = type(twin).build is not keras.layers.Layer.build
    if has_build and operation.built and (build_config := operation.get_build_config()):
        twin.build_from_config(build_config)
    return twin


def _made_again(layer: Any, name: str) -> Any:
    """Return a new layer from the configuration or the recorded constructor arguments.

    Raises:
        UnsupportedModelError: neither works.
    """
    try:
        return _by_config(layer, name)
    except UnsupportedModelError as error:
        if (twin := clone_by_arguments(layer, name)) is not None:
            return twin
        if not layer.variables:
            return layer  # it remains in float, and has no state to train
        raise UnsupportedModelError(
            f"{type(layer).__name__} {layer.name!r} can't be copied from its configuration: "
            f"{describe_error(error)}. "
            "Give the class a get_config that returns its constructor's arguments."
        ) from error


def _by_config(layer: Any, name: str) -> Any:
    try:
        # A user's function, such as an activation, is reused like that of a Lambda.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`")
            config = {**layer.get_config(), "name": name}
        functions = {
            key: getattr(layer, key)
            for key, value in config.items()
            if isinstance(value, dict) and isfunction(getattr(layer, key, None))
        }
        return type(layer).from_config(config | functions)
    except Exception as error:  # a custom layer's get_config and from_config may raise anything
        raise UnsupportedModelError(describe_error(error)) from error


def clone_by_arguments(layer: Any, name: str) -> Any:
    """Return a new layer from the recorded constructor arguments; None without a record."""
    recorded = constructor_arguments(layer)
    if recorded is None:
        return None
    twin = type(layer)(**recorded)
    twin.name = name
    return twin


def constructor_arguments(layer: Any) -> dict[str, Any] | None:
    """Return the constructor arguments without the name; None if they are not plain data."""
    # Keras records the arguments of each layer to provide a default ``get_config``.
    recorded = getattr(layer, "_auto_config", None)
    return None if recorded is None else dict(recorded.config)


def sound_config(layer: Any) -> dict[str, Any]:
    """Return a configuration that recreates the layer, if possible.

    Layers with an incomplete ``get_config`` exist in models with another way of saving, as in
    keras_hub.
    """
    config: dict[str, Any] = layer.get_config()
    recorded = constructor_arguments(layer)
    if recorded is None:
        return config
    try:
        _by_config(layer, layer.name)
    except UnsupportedModelError:
        return {**recorded, "name": layer.name}
    return config


def call_copy(layer: Any, args: Any, kwargs: Any) -> Any:
    """Call a copy with the arguments of the original.

    Raises:
        UnsupportedModelError: the call fails, for example because of an incomplete configuration.
    """
    try:
        return layer(*args, **kwargs)
    except (QatlineError, RecursionError):
        raise
    except Exception as error:  # a custom layer's call may raise anything
        raise UnsupportedModelError(
            f"The copy of {layer.name!r} ({type(layer).__name__}) can't be called as the original "
            "was: "
            f"{type(error).__name__}: {describe_error(error)}."
        ) from error


def has_same_variables(source: Any, target: Any) -> bool:
    """Whether both layers have variables of the same shapes.

    A copy may create some of its variables only in its first call.
    """
    return _shapes(source) == _shapes(target)


def copy_state(source: Any, target: Any) -> None:
    """Copy every variable of ``source`` to ``target``, seeds and vocabularies included.

    Raises:
        UnsupportedModelError: the layers have different variables.
    """
    if not has_same_variables(source, target):
        raise UnsupportedModelError(
            f"The copy of {type(source).__name__} {source.name!r} has other weights: expected "
            "shapes "
            f"{_shapes(source)}, received {_shapes(target)}. Give the class a get_config that "
            "returns its "
            "constructor's arguments."
        )
    for old, new in zip(source.variables, target.variables, strict=True):
        new.assign(old.value)
    for old, new in zip(layers_of(source), layers_of(target), strict=True):
        # Preprocessing layers, such as Normalization and StringLookup.
        if hasattr(old, "finalize_state"):
            _copy_beyond_variables(old, new)


def _copy_beyond_variables(old: Any, new: Any) -> None:
    """Copy the state of Keras preprocessing layers outside of variables."""
    store: dict[str, Any] = {}
    old.save_own_variables(store)
    new.load_own_variables(store)  # Normalization computes its constants here
    if hasattr(old, "save_assets"):
        with tempfile.TemporaryDirectory() as folder:
            old.save_assets(folder)
            new.load_assets(folder)


def _shapes(layer: Any) -> list[tuple[int, ...]]:
    return [tuple(variable.shape) for variable in layer.variables]
