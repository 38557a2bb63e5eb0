"""The quantizer, under the path that pytorch-quantization gives it."""

from __future__ import annotations

from qat_lib.torch.tensor_quantizer import TensorQuantizer

__all__ = ["TensorQuantizer"]
