"""Fake quantization: the op, its contexts, and the layer with the range of a tensor."""

from __future__ import annotations

from qat_lib.calibrators.collecting import collecting
from qat_lib.core.ranges import AMAX_FLOOR, RANGE_POLICIES
from qat_lib.keras.quantizers.channel_relu import ChannelReLU
from qat_lib.keras.quantizers.fake_quantize import fake_quantize, quantization_scale
from qat_lib.keras.quantizers.modes import export_mode
from qat_lib.keras.quantizers.tensor_quantizer import TensorQuantizer, model_quantizers

__all__ = [
    "AMAX_FLOOR",
    "RANGE_POLICIES",
    "ChannelReLU",
    "TensorQuantizer",
    "collecting",
    "export_mode",
    "fake_quantize",
    "model_quantizers",
    "quantization_scale",
]
