"""Registry of reference networks in PyTorch, with weights from files in PyTorch's layouts."""

from __future__ import annotations

from typing import Any

from torch import nn

from qat_lib.errors import ConfigError
from qat_lib.models import check_reference_name
from qat_lib.torch.models.mobilenet import MobileNetV2, mobilenet_v2
from qat_lib.torch.models.resnet import ResNetCifar, resnet20_cifar10
from qat_lib.torch.models.weights import load_weights

__all__ = [
    "MobileNetV2",
    "ResNetCifar",
    "build_reference_model",
    "load_weights",
    "mobilenet_v2",
    "resnet20_cifar10",
]

_BUILDERS = {"resnet20_cifar10": resnet20_cifar10, "mobilenetv2_imagenet": mobilenet_v2}


def build_reference_model(name: str, **options: Any) -> nn.Module:
    """Build the reference network ``name`` of a config.

    Args:
        name: one of ``qat_lib.models.TORCH_REFERENCE_MODELS``.
        **options: arguments of the builder: ``channels`` and ``classes``.

    Raises:
        ConfigError: the network does not exist, or does not accept one of the options.
    """
    check_reference_name(name, "torch")
    try:
        return _BUILDERS[name](**options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model.options do not fit {name}: {error}.") from error
