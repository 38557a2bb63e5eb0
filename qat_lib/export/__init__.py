"""Export to ONNX for both front ends: lossless lowering passes, record and verification."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qat_lib.export.finish import ExportReport
    from qat_lib.export.options import ExportOptions
    from qat_lib.export.parity_report import LayerDifference, ParityReport
    from qat_lib.export.verify import verify_onnx

__all__ = [
    "ExportOptions",
    "ExportReport",
    "LayerDifference",
    "ParityReport",
    "verify_onnx",
]

# Imported on first use: verification requires no TensorFlow, and the package itself no onnx-ir.
_HOMES = {
    "ExportOptions": "qat_lib.export.options",
    "ExportReport": "qat_lib.export.finish",
    "LayerDifference": "qat_lib.export.parity_report",
    "ParityReport": "qat_lib.export.parity_report",
    "verify_onnx": "qat_lib.export.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
