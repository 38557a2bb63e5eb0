"""Instance normalization of quantized inputs."""

from __future__ import annotations

from torch import nn

from qat_lib.torch.nn.modules.quantized import QuantizedInput


class QuantInstanceNorm1d(QuantizedInput, nn.InstanceNorm1d):
    """``nn.InstanceNorm1d`` of a quantized input."""


class QuantInstanceNorm2d(QuantizedInput, nn.InstanceNorm2d):
    """``nn.InstanceNorm2d`` of a quantized input."""


class QuantInstanceNorm3d(QuantizedInput, nn.InstanceNorm3d):
    """``nn.InstanceNorm3d`` of a quantized input."""


# pytorch-quantization also exports the names of the originals.
InstanceNorm1d = QuantInstanceNorm1d
InstanceNorm2d = QuantInstanceNorm2d
InstanceNorm3d = QuantInstanceNorm3d
