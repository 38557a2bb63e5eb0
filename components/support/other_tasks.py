"""Advice for models other than classifiers.

A separate module, since readers of data, trainers and commands reject such models and must not
import each other.
"""

from __future__ import annotations

OTHER_TASKS = (
    "qatline run, evaluate and finetune take classifiers with one input. For regression, "
    "segmentation, detection or several inputs, call the library: qat_lib.quantize_model, "
    "qat_lib.calibrate, fit, qat_lib.export_onnx, qat_lib.engines.build_engine, then qatline "
    'check-engine. See docs/library.md, "Models that are not classifiers".'
)
"""Path to an INT8 engine for other models; the end of every message that rejects one."""
