"""The variants of a model that a run measures.

Which files each has, and which row of the results is its engine's.
"""

from __future__ import annotations

from enum import Enum


class Variant(str, Enum):
    """A model variant; its value is its files' stem."""

    FP32 = "fp32"
    PTQ = "ptq"
    QAT = "qat"
    FP16 = "fp16"
    BF16 = "bf16"

    def __str__(self) -> str:
        return self.value

    @property
    def onnx(self) -> str:
        """Name of its ONNX file."""
        return f"{self}.onnx"

    @property
    def engine(self) -> str:
        """Name of its engine file."""
        return f"{self}.engine"

    @property
    def row(self) -> str:
        """Name of its engine's row in the results."""
        return f"{self}_engine"


REQUIRED = (Variant.FP32, Variant.PTQ, Variant.QAT)
"""The variants that every run has; FP16 and BF16 are added where the backend has them."""

HALF = (Variant.FP16, Variant.BF16)
"""The variants in 16-bit floating point."""

CANDIDATE_VARIANT = Variant.QAT
"""The variant that is judged and promoted."""
