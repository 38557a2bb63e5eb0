"""Registry of small reference networks, used by the default pipeline and the examples."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from qat_lib.errors import ConfigError
from qat_lib.options import Framework

if TYPE_CHECKING:
    from qat_lib.models.mobilenet import mobilenetv2_imagenet
    from qat_lib.models.resnet import resnet20_cifar10, resnet_digits

_MODULES = {
    "resnet_digits": "resnet",
    "resnet20_cifar10": "resnet",
    "mobilenetv2_imagenet": "mobilenet",
}
REFERENCE_MODELS = tuple(_MODULES)
"""Names of the networks."""

TORCH_REFERENCE_MODELS = ("resnet20_cifar10", "mobilenetv2_imagenet")
"""Names of the networks that ``qat_lib.torch.models`` also builds."""

__all__ = [
    "REFERENCE_MODELS",
    "TORCH_REFERENCE_MODELS",
    "build_reference_model",
    "check_reference_name",
    "mobilenetv2_imagenet",
    "resnet20_cifar10",
    "resnet_digits",
]


_KNOWN: dict[Framework, tuple[str, ...]] = {
    "keras": REFERENCE_MODELS,
    "torch": TORCH_REFERENCE_MODELS,
}
_TITLES: dict[Framework, str] = {"keras": "Keras", "torch": "PyTorch"}
_OTHERS: dict[Framework, str] = {
    "keras": "keras.applications:<Name>, module:function, or the path of a .keras file",
    "torch": "module:function that returns a torch.nn.Module",
}


def check_reference_name(name: str, framework: Framework = "keras") -> None:
    """Check that the reference network ``name`` exists, without importing its framework.

    Raises:
        ConfigError: the network does not exist; the message suggests the nearest name.
    """
    known = _KNOWN[framework]
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"model.name {name!r} is not a reference network of {_TITLES[framework]} "
        f"({', '.join(known)}).{hint} "
        f"Other models: {_OTHERS[framework]}."
    )


def build_reference_model(
    name: str, input_shape: tuple[int, int, int], classes: int, **options: Any
) -> Any:
    """Build the reference network ``name`` for images of ``input_shape`` (height, width, channels).

    Raises:
        ConfigError: the network does not exist, or does not accept one of the options.
    """
    check_reference_name(name)
    try:
        return _builder(name)(input_shape=input_shape, classes=classes, **options)
    except TypeError as error:
        raise ConfigError(f"model.options do not fit {name}: {error}.") from error


def __getattr__(name: str) -> Any:
    if name not in REFERENCE_MODELS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _builder(name)


def _builder(name: str) -> Any:
    return getattr(importlib.import_module(f"qat_lib.models.{_MODULES[name]}"), name)
