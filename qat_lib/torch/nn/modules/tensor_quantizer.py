"""The quantizer under its path in pytorch-quantization."""

from __future__ import annotations

from qat_lib.torch.tensor_quantizer import TensorQuantizer

__all__ = ["TensorQuantizer"]
