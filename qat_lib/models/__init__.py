"""Small reference networks, by name: what the pipeline's default and the examples train."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from qat_lib.errors import ConfigError
from qat_lib.models.resnet import resnet20_cifar10, resnet_digits

REFERENCE_MODELS: dict[str, Callable[..., Any]] = {
    "resnet_digits": resnet_digits,
    "resnet20_cifar10": resnet20_cifar10,
}

__all__ = ["REFERENCE_MODELS", "build_reference_model", "resnet20_cifar10", "resnet_digits"]


def build_reference_model(name: str, input_shape: tuple[int, int, int], classes: int, **options: Any) -> Any:
    """Build the reference network ``name`` for images of ``input_shape`` (height, width, channels).

    Raises:
        ConfigError: there is no such network, or it does not take one of the options.
    """
    if name not in REFERENCE_MODELS:
        near = difflib.get_close_matches(name, REFERENCE_MODELS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"model.name {name!r} is not a reference network ({', '.join(REFERENCE_MODELS)}).{hint} "
            "Other models: keras.applications:<Name>, module:function, or the path of a .keras file."
        )
    try:
        return REFERENCE_MODELS[name](input_shape=input_shape, classes=classes, **options)
    except TypeError as error:
        raise ConfigError(f"model.options do not fit {name}: {error}.") from error
