"""Corrections of a quantized model that need unlabeled data and no training."""

from __future__ import annotations

from qat_lib.keras.correction.bias import correct_bias
from qat_lib.keras.correction.equalization import equalize
from qat_lib.keras.correction.equalization_choice import EqualizationChoice, choose_equalization
from qat_lib.keras.correction.weight_rounding import RoundingReport, adaround
from qat_lib.lockstep.bias import BiasReport

__all__ = [
    "BiasReport",
    "EqualizationChoice",
    "RoundingReport",
    "adaround",
    "choose_equalization",
    "correct_bias",
    "equalize",
]
