"""Find the layers of a quantized model that lose accuracy, with causes and fixes."""

from __future__ import annotations

from qat_lib.keras.diagnosis.diagnose import PLAIN, diagnose
from qat_lib.keras.diagnosis.html import diagnosis_page
from qat_lib.keras.diagnosis.report import Diagnosis, LayerEffect, LayerFinding, TensorError

__all__ = [
    "PLAIN",
    "Diagnosis",
    "LayerEffect",
    "LayerFinding",
    "TensorError",
    "diagnose",
    "diagnosis_page",
]
