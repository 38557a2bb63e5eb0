"""Reference networks in PyTorch, by name, and weights from files with their names and layouts."""

from __future__ import annotations

from qat_lib.torch.models.mobilenet import MobileNetV2, mobilenet_v2
from qat_lib.torch.models.resnet import ResNetCifar, resnet20_cifar10
from qat_lib.torch.models.weights import load_weights

__all__ = ["MobileNetV2", "ResNetCifar", "load_weights", "mobilenet_v2", "resnet20_cifar10"]
