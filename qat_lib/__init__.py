"""Quantization-aware training for Keras 3, from Q/DQ placement to a verified ONNX graph and its engine.

Names are imported when they are first used, so that ``import qat_lib`` is quick and the engine step needs no
TensorFlow. A ``.keras`` file of a quantized model loads with :func:`load_model`, or with ``keras.models.load_model``
once any name of the Keras side was used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "qat_lib.quantize": ("quantize_model", "model_quantizers"),
    "qat_lib.rebuild": ("apply_plan",),
    "qat_lib.planner": ("plan_quantization",),
    "qat_lib.plan": ("QuantizationPlan", "QuantizerEntry", "SkippedLayer"),
    "qat_lib.spec": ("QuantizationSpec", "LayerConfig"),
    "qat_lib.loading": ("load_model",),
    "qat_lib.calibration": ("calibrate", "CalibrationReport"),
    "qat_lib.quantizers": ("TensorQuantizer", "fake_quantize"),
    "qat_lib.layer_graph": ("LayerGraph",),
    "qat_lib.custom_qdq_cases": (
        "CustomQDQInsertionCase",
        "TensorRTQDQCase",
        "ResNetV1QDQCase",
        "ResNetV2QDQCase",
        "EfficientNetQDQCase",
        "MobileNetQDQCase",
        "InceptionQDQCase",
        "ResidualConnectionQDQCase",
        "BNQDQCase",
        "MaxPoolQDQCase",
        "check_is_quantizable_by_layer_name",
    ),
    "qat_lib.utils": ("CreateAssetsFolders", "convert_keras_model_to_onnx", "convert_saved_model_to_onnx"),
    "qat_lib.export": ("export_onnx", "verify_onnx", "check_parity"),
    "qat_lib.analysis": ("analyze_onnx", "FusionReport"),
    "qat_lib.engines": ("build_engine", "load_engine", "BuildSpec"),
}
_MODULES = (
    "custom_qdq_cases",
    "quantize",
    "quantize_wrappers",
    "quantizers",
    "utils",
    "calibration",
    "export",
    "analysis",
    "engines",
)
_NAMES = {name: module for module, names in _HOME.items() for name in names}

__all__ = [*sorted(_NAMES), *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"qat_lib.{name}")
    elif name.endswith("QuantizeWrapper"):
        value = getattr(importlib.import_module("qat_lib.quantize_wrappers"), name)
    else:
        raise AttributeError(f"module 'qat_lib' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
