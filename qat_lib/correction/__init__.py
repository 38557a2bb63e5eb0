"""Corrections of a quantized model that need unlabeled data and no training."""

from __future__ import annotations

from qat_lib.correction.bias import correct_bias
from qat_lib.correction.equalization import equalize, gains_from_equalization
from qat_lib.correction.weight_rounding import RoundingReport, adaround
from qat_lib.lockstep.bias import BiasReport

__all__ = [
    "BiasReport",
    "RoundingReport",
    "adaround",
    "correct_bias",
    "equalize",
    "gains_from_equalization",
]
