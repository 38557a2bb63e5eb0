"""Corrections of a quantized model from unlabeled data, without training."""

from __future__ import annotations

from qat_lib.keras.correction.bias import correct_bias
from qat_lib.keras.correction.equalization import equalize
from qat_lib.keras.correction.equalization_choice import choose_equalization
from qat_lib.keras.correction.weight_rounding import adaround
from qat_lib.lockstep.bias import BiasReport, EqualizationChoice, RoundingReport

__all__ = [
    "BiasReport",
    "EqualizationChoice",
    "RoundingReport",
    "adaround",
    "choose_equalization",
    "correct_bias",
    "equalize",
]
