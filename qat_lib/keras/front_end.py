"""Keras front end of ``qat_lib.ptq``; see ``qat_lib.ptq.FrontEnd``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.export.finish import ExportReport
from qat_lib.keras.apply.rebuild import apply_plan
from qat_lib.keras.calibration import calibrate
from qat_lib.keras.correction import adaround, choose_equalization, correct_bias
from qat_lib.keras.export import export_onnx
from qat_lib.keras.search import search

__all__ = [
    "adaround",
    "apply_plan",
    "calibrate",
    "correct_bias",
    "export_like",
    "input_names",
    "prepare",
    "search",
]

prepare = choose_equalization


def export_like(
    model: Any, path: Path, _example: Mapping[str, np.ndarray], **options: Any
) -> ExportReport:
    """Export a model. Its inputs have known shapes: the example is not needed."""
    return export_onnx(model, path, **options)


def input_names(model: Any, _data: Any) -> list[str]:
    """Return the names of the inputs in order."""
    return [tensor.name.partition(":")[0] for tensor in model.inputs]
