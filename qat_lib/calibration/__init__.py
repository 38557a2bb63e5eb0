"""Calibration: ranges from data, before any fine-tuning."""

from __future__ import annotations

from qat_lib.calibration.calibrate import calibrate
from qat_lib.calibration.histogram import Histogram
from qat_lib.calibrators.methods import METHODS, range_from_histogram
from qat_lib.calibrators.report import CalibrationReport, TensorStatistics

__all__ = [
    "METHODS",
    "CalibrationReport",
    "Histogram",
    "TensorStatistics",
    "calibrate",
    "range_from_histogram",
]
