"""Planner: from model, spec and cases to a QuantizationPlan.

The inputs are not modified. A tensor has one quantizer, shared by all readers that request it; the
output of a range-preserving layer keeps the quantizer of its input; the inputs of a quantized
Concatenate share a range.
"""

from __future__ import annotations

from qat_lib.planner.planner import plan_quantization

__all__ = ["plan_quantization"]
