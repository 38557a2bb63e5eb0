"""Calibration: set ranges from data."""

from __future__ import annotations

from qat_lib.calibrators.calibration import CalibrationReport, TensorStatistics
from qat_lib.calibrators.methods import METHODS, range_from_histogram
from qat_lib.keras.calibration.calibrate import calibrate
from qat_lib.keras.calibration.observing import Histogram

__all__ = [
    "METHODS",
    "CalibrationReport",
    "Histogram",
    "TensorStatistics",
    "calibrate",
    "range_from_histogram",
]
