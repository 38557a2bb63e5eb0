"""The way out for models that are not classifiers.

It stands by itself, as readers of data, trainers and commands refuse such models and must not import
each other for it.
"""

from __future__ import annotations

OTHER_TASKS = (
    "qatline run, evaluate and finetune take classifiers with one input. For regression, "
    "segmentation, detection or several inputs, call the library: qat_lib.quantize_model, "
    "qat_lib.calibrate, fit, qat_lib.export_onnx, qat_lib.engines.build_engine, then qatline "
    'check-engine. See docs/library.md, "Models that are not classifiers".'
)
"""Shortest way to an INT8 engine for any other model; ends the messages that refuse one."""
