"""Corrections of a quantized model that need unlabeled data and no training."""

from __future__ import annotations

from qat_lib.correction.bias import BiasReport, correct_bias

__all__ = ["BiasReport", "correct_bias"]
