"""Plan quantization: from model, spec and cases to a QuantizationPlan.

None of the inputs is changed. A quantizer belongs to a tensor: every reader that wants the tensor
quantized shares it; a tensor that comes out of a range-preserving layer keeps the quantizer of what
went in; tensors that meet in a quantized Concatenate share a range.
"""

from __future__ import annotations

from qat_lib.planner.planner import plan_quantization

__all__ = ["plan_quantization"]
