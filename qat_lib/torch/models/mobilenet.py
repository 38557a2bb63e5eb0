"""MobileNetV2 (Sandler et al. 2018, https://arxiv.org/abs/1801.04381) in torchvision's layout."""

from __future__ import annotations

import torch
from torch import nn

from qat_lib.models.mobilenet_stages import STAGES


def mobilenet_v2(*, channels: int = 3, classes: int = 1000) -> MobileNetV2:
    """Build MobileNetV2 1.0 with the names of torchvision's ``mobilenet_v2``.

    Args:
        channels: channels of an image.
        classes: number of logits.

    Returns:
        A module with 3.5 M parameters, from normalized RGB ``(batch, 3, height, width)`` to logits
        ``(batch, classes)``. The Keras version is ``qat_lib.models.mobilenetv2_imagenet``.
    """
    return MobileNetV2(channels=channels, classes=classes)


class MobileNetV2(nn.Module):
    """Inverted residual blocks with depthwise convolutions, ReLU6, and a classifier.

    Args:
        channels: channels of an image.
        classes: number of logits.
    """

    def __init__(self, *, channels: int = 3, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu(channels, 32, 3, stride=2)]
        width = 32
        for expansion, filters, blocks, first_stride in STAGES:
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                layers.append(InvertedResidual(width, filters, stride, expansion))
                width = filters
        layers.append(_conv_bn_relu(width, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits of images."""
        logits: torch.Tensor = self.classifier(self.flatten(self.pool(self.features(image))))
        return logits


class InvertedResidual(nn.Module):
    """Expand, convolve depthwise, project; add the input if the shapes agree.

    Args:
        before: channels of the input.
        filters: channels of the output.
        stride: stride of the depthwise convolution.
        expansion: factor of the inner channels; 1 omits the first convolution.
    """

    def __init__(self, before: int, filters: int, stride: int, expansion: int) -> None:
        super().__init__()
        inside = before * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(_conv_bn_relu(before, inside, 1))
        layers.append(_conv_bn_relu(inside, inside, 3, stride=stride, groups=inside))
        layers.append(nn.Conv2d(inside, filters, 1, bias=False))
        layers.append(nn.BatchNorm2d(filters))
        self.conv = nn.Sequential(*layers)
        self.adds_input = stride == 1 and before == filters

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for ``x``, ``(batch, before, height, width)``."""
        projected: torch.Tensor = self.conv(x)
        return x + projected if self.adds_input else projected


def _conv_bn_relu(
    before: int, filters: int, size: int, *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    padding = (size - 1) // 2
    return nn.Sequential(
        nn.Conv2d(before, filters, size, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU6(),
    )
