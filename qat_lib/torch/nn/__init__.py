"""Quantized modules, with the names of pytorch-quantization.

Each derives from its original and accepts the same arguments, ``quant_desc_input`` and, with
weights, ``quant_desc_weight``.
"""

from __future__ import annotations

from qat_lib.torch.nn.modules._utils import QuantInputMixin, QuantMixin, pop_quant_desc_in_kwargs
from qat_lib.torch.nn.modules.clip import Clip
from qat_lib.torch.nn.modules.quant_conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    QuantConv1d,
    QuantConv2d,
    QuantConv3d,
    QuantConvTranspose1d,
    QuantConvTranspose2d,
    QuantConvTranspose3d,
)
from qat_lib.torch.nn.modules.quant_instancenorm import (
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    QuantInstanceNorm1d,
    QuantInstanceNorm2d,
    QuantInstanceNorm3d,
)
from qat_lib.torch.nn.modules.quant_linear import (
    Linear,
    QuantLinear,
)
from qat_lib.torch.nn.modules.quant_pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    QuantAdaptiveAvgPool1d,
    QuantAdaptiveAvgPool2d,
    QuantAdaptiveAvgPool3d,
    QuantAvgPool1d,
    QuantAvgPool2d,
    QuantAvgPool3d,
    QuantMaxPool1d,
    QuantMaxPool2d,
    QuantMaxPool3d,
)
from qat_lib.torch.nn.modules.quant_rnn import (
    LSTM,
    LSTMCell,
    QuantLSTM,
    QuantLSTMCell,
)
from qat_lib.torch.tensor_quantizer import TensorQuantizer

__all__ = [
    "LSTM",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "Clip",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LSTMCell",
    "Linear",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "QuantAdaptiveAvgPool1d",
    "QuantAdaptiveAvgPool2d",
    "QuantAdaptiveAvgPool3d",
    "QuantAvgPool1d",
    "QuantAvgPool2d",
    "QuantAvgPool3d",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConv3d",
    "QuantConvTranspose1d",
    "QuantConvTranspose2d",
    "QuantConvTranspose3d",
    "QuantInputMixin",
    "QuantInstanceNorm1d",
    "QuantInstanceNorm2d",
    "QuantInstanceNorm3d",
    "QuantLSTM",
    "QuantLSTMCell",
    "QuantLinear",
    "QuantMaxPool1d",
    "QuantMaxPool2d",
    "QuantMaxPool3d",
    "QuantMixin",
    "TensorQuantizer",
    "pop_quant_desc_in_kwargs",
]
