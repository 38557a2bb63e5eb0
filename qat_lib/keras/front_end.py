"""Keras front end of ``qat_lib.ptq``; see ``qat_lib.ptq.FrontEnd``."""

from __future__ import annotations

from qat_lib.keras.apply.rebuild import apply_plan
from qat_lib.keras.calibration import calibrate
from qat_lib.keras.correction import adaround, choose_equalization, correct_bias

__all__ = ["adaround", "apply_plan", "calibrate", "correct_bias", "prepare"]

prepare = choose_equalization
