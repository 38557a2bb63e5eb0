"""Pooling of quantized inputs."""

from __future__ import annotations

from torch import nn

from qat_lib.torch.nn.modules.quantized import QuantizedInput


class QuantMaxPool1d(QuantizedInput, nn.MaxPool1d):
    """``nn.MaxPool1d`` of a quantized input."""


class QuantMaxPool2d(QuantizedInput, nn.MaxPool2d):
    """``nn.MaxPool2d`` of a quantized input."""


class QuantMaxPool3d(QuantizedInput, nn.MaxPool3d):
    """``nn.MaxPool3d`` of a quantized input."""


class QuantAvgPool1d(QuantizedInput, nn.AvgPool1d):
    """``nn.AvgPool1d`` of a quantized input."""


class QuantAvgPool2d(QuantizedInput, nn.AvgPool2d):
    """``nn.AvgPool2d`` of a quantized input."""


class QuantAvgPool3d(QuantizedInput, nn.AvgPool3d):
    """``nn.AvgPool3d`` of a quantized input."""


class QuantAdaptiveAvgPool1d(QuantizedInput, nn.AdaptiveAvgPool1d):
    """``nn.AdaptiveAvgPool1d`` of a quantized input."""


class QuantAdaptiveAvgPool2d(QuantizedInput, nn.AdaptiveAvgPool2d):
    """``nn.AdaptiveAvgPool2d`` of a quantized input."""


class QuantAdaptiveAvgPool3d(QuantizedInput, nn.AdaptiveAvgPool3d):
    """``nn.AdaptiveAvgPool3d`` of a quantized input."""


# pytorch-quantization also exports the names of the originals.
MaxPool1d = QuantMaxPool1d
MaxPool2d = QuantMaxPool2d
MaxPool3d = QuantMaxPool3d
AvgPool1d = QuantAvgPool1d
AvgPool2d = QuantAvgPool2d
AvgPool3d = QuantAvgPool3d
AdaptiveAvgPool1d = QuantAdaptiveAvgPool1d
AdaptiveAvgPool2d = QuantAdaptiveAvgPool2d
AdaptiveAvgPool3d = QuantAdaptiveAvgPool3d
