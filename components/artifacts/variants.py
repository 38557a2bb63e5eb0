"""Variants of a model in a run, with their files and result rows."""

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
"""Variants of every run; FP16 and BF16 are added if the backend supports them."""

HALF = (Variant.FP16, Variant.BF16)
"""The variants in 16-bit floating point."""

CANDIDATE_VARIANT = Variant.QAT
"""The judged and promoted variant."""
