"""The CIFAR ResNet-20 of He et al. 2015 (https://arxiv.org/abs/1512.03385)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def resnet20_cifar10(*, channels: int = 3, classes: int = 10) -> ResNetCifar:
    """Build the CIFAR ResNet-20 with parameter-free shortcuts (option A).

    Args:
        channels: channels of an image.
        classes: number of logits.

    Returns:
        A module with 0.27 M parameters, from normalized RGB ``(batch, 3, height, width)`` to
        logits ``(batch, classes)``. The Keras version is ``qat_lib.models.resnet20_cifar10``.
    """
    return ResNetCifar(blocks=3, channels=channels, classes=classes)


class ResNetCifar(nn.Module):
    """ResNet for CIFAR: a stem, then three stages of basic blocks with 16, 32 and 64 channels.

    Args:
        blocks: blocks of each stage.
        channels: channels of an image.
        classes: number of logits.
    """

    def __init__(self, *, blocks: int, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu1 = nn.ReLU()
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, 64, blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(64, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits of images."""
        x = self.relu1(self.bn1(self.conv1(image)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: torch.Tensor = self.linear(self.flatten(self.pool(x)))
        return logits


def _stage(before: int, filters: int, blocks: int) -> nn.Sequential:
    first = OptionABlock(before, filters)
    return nn.Sequential(first, *(OptionABlock(filters, filters) for _ in range(blocks - 1)))


class OptionABlock(nn.Module):
    """Two 3x3 convolutions with a shortcut of subsampling and zero channels.

    Args:
        before: channels of the input.
        filters: channels of the output; more than ``before`` halves height and width.
    """

    def __init__(self, before: int, filters: int) -> None:
        super().__init__()
        stride = 1 if before == filters else 2
        self.conv1 = nn.Conv2d(before, filters, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.relu2 = nn.ReLU()
        if stride > 1:
            # A pool over one pixel with stride 2 is He et al.'s strided subsampling.
            self.subsample = nn.MaxPool2d(1, stride=2)
        self.added = (filters - before) // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for ``x``, ``(batch, before, height, width)``."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.added:
            x = functional.pad(self.subsample(x), (0, 0, 0, 0, self.added, self.added))
        output: torch.Tensor = self.relu2(y + x)
        return output
