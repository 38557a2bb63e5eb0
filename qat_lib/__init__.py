"""Quantization-aware training for Keras 3, from Q/DQ placement to verified ONNX.

Names are imported when they are first used, so that ``import qat_lib`` is quick and the engine step
needs no TensorFlow. A ``.keras`` file of a quantized model loads with ``load_model``, or with
``keras.models.load_model`` once any name of the Keras side was used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qat_lib import (
        analysis,
        calibration,
        custom_qdq_cases,
        diagnosis,
        engines,
        errors,
        export,
        placement,
        plan,
        quantize,
        quantize_wrappers,
        quantizers,
        spec,
        training,
        utils,
    )
    from qat_lib.analysis import (
        FusionReport,
        analyze_onnx,
    )
    from qat_lib.analysis.tensor_trace import TensorTrace
    from qat_lib.analysis.tracing import trace_tensor
    from qat_lib.core.deployment import Deployment
    from qat_lib.core.plan import QuantizationPlan, QuantizerEntry, SkippedLayer
    from qat_lib.core.spec import LayerConfig, QuantizationSpec
    from qat_lib.custom_qdq_cases import (
        BNQDQCase,
        CustomQDQInsertionCase,
        EfficientNetQDQCase,
        InceptionQDQCase,
        MaxPoolQDQCase,
        MobileNetQDQCase,
        ResidualConnectionQDQCase,
        ResNetV1QDQCase,
        ResNetV2QDQCase,
        TensorRTQDQCase,
        check_is_quantizable_by_layer_name,
    )
    from qat_lib.engines import (
        BuildSpec,
        build_engine,
        load_engine,
    )
    from qat_lib.export import verify_onnx
    from qat_lib.keras.apply.rebuild import apply_plan
    from qat_lib.keras.calibration import CalibrationReport, calibrate
    from qat_lib.keras.correction import (
        BiasReport,
        RoundingReport,
        adaround,
        correct_bias,
        equalize,
    )
    from qat_lib.keras.diagnosis import Diagnosis, diagnose
    from qat_lib.keras.export import check_parity, export_onnx
    from qat_lib.keras.folding import folded_weights
    from qat_lib.keras.graph.layer_graph import LayerGraph
    from qat_lib.keras.loading import load_model
    from qat_lib.keras.quantize import quantize_model
    from qat_lib.keras.quantizers import TensorQuantizer, fake_quantize, model_quantizers
    from qat_lib.keras.search import PlacementResult, search
    from qat_lib.keras.wrappers import (
        BaseQuantizeWrapper,
        NonWeightedBaseQuantizeWrapper,
        WeightedBaseQuantizeWrapper,
    )
    from qat_lib.optimization import Optimized, optimize
    from qat_lib.planner import plan_quantization
    from qat_lib.preprocessing import Preprocessing
    from qat_lib.ptq import PtqRecipe
    from qat_lib.utils import (
        CreateAssetsFolders,
        convert_keras_model_to_onnx,
        convert_saved_model_to_onnx,
    )

__all__ = [
    "BNQDQCase",
    "BaseQuantizeWrapper",
    "BiasReport",
    "BuildSpec",
    "CalibrationReport",
    "CreateAssetsFolders",
    "CustomQDQInsertionCase",
    "Deployment",
    "Diagnosis",
    "EfficientNetQDQCase",
    "FusionReport",
    "InceptionQDQCase",
    "LayerConfig",
    "LayerGraph",
    "MaxPoolQDQCase",
    "MobileNetQDQCase",
    "NonWeightedBaseQuantizeWrapper",
    "Optimized",
    "PlacementResult",
    "Preprocessing",
    "PtqRecipe",
    "QuantizationPlan",
    "QuantizationSpec",
    "QuantizerEntry",
    "ResNetV1QDQCase",
    "ResNetV2QDQCase",
    "ResidualConnectionQDQCase",
    "RoundingReport",
    "SkippedLayer",
    "TensorQuantizer",
    "TensorRTQDQCase",
    "TensorTrace",
    "WeightedBaseQuantizeWrapper",
    "adaround",
    "analysis",
    "analyze_onnx",
    "apply_plan",
    "build_engine",
    "calibrate",
    "calibration",
    "check_is_quantizable_by_layer_name",
    "check_parity",
    "convert_keras_model_to_onnx",
    "convert_saved_model_to_onnx",
    "correct_bias",
    "custom_qdq_cases",
    "diagnose",
    "diagnosis",
    "engines",
    "equalize",
    "errors",
    "export",
    "export_onnx",
    "fake_quantize",
    "folded_weights",
    "load_engine",
    "load_model",
    "model_quantizers",
    "optimize",
    "placement",
    "plan",
    "plan_quantization",
    "quantize",
    "quantize_model",
    "quantize_wrappers",
    "quantizers",
    "search",
    "spec",
    "trace_tensor",
    "training",
    "utils",
    "verify_onnx",
]

# Where each name lives; the imports above say the same to type checkers and editors.
_HOMES = {
    "FusionReport": "qat_lib.analysis",
    "analyze_onnx": "qat_lib.analysis",
    "CalibrationReport": "qat_lib.keras.calibration",
    "calibrate": "qat_lib.keras.calibration",
    "BiasReport": "qat_lib.keras.correction",
    "RoundingReport": "qat_lib.keras.correction",
    "adaround": "qat_lib.keras.correction",
    "correct_bias": "qat_lib.keras.correction",
    "equalize": "qat_lib.keras.correction",
    "BNQDQCase": "qat_lib.custom_qdq_cases",
    "CustomQDQInsertionCase": "qat_lib.custom_qdq_cases",
    "EfficientNetQDQCase": "qat_lib.custom_qdq_cases",
    "InceptionQDQCase": "qat_lib.custom_qdq_cases",
    "MaxPoolQDQCase": "qat_lib.custom_qdq_cases",
    "MobileNetQDQCase": "qat_lib.custom_qdq_cases",
    "ResNetV1QDQCase": "qat_lib.custom_qdq_cases",
    "ResNetV2QDQCase": "qat_lib.custom_qdq_cases",
    "ResidualConnectionQDQCase": "qat_lib.custom_qdq_cases",
    "TensorRTQDQCase": "qat_lib.custom_qdq_cases",
    "check_is_quantizable_by_layer_name": "qat_lib.custom_qdq_cases",
    "Deployment": "qat_lib.core.deployment",
    "Diagnosis": "qat_lib.keras.diagnosis",
    "diagnose": "qat_lib.keras.diagnosis",
    "BuildSpec": "qat_lib.engines",
    "build_engine": "qat_lib.engines",
    "load_engine": "qat_lib.engines",
    "check_parity": "qat_lib.keras.export",
    "export_onnx": "qat_lib.keras.export",
    "verify_onnx": "qat_lib.export",
    "folded_weights": "qat_lib.keras.folding",
    "LayerGraph": "qat_lib.keras.graph.layer_graph",
    "load_model": "qat_lib.keras.loading",
    "PlacementResult": "qat_lib.keras.search",
    "search": "qat_lib.keras.search",
    "QuantizationPlan": "qat_lib.core.plan",
    "QuantizerEntry": "qat_lib.core.plan",
    "SkippedLayer": "qat_lib.core.plan",
    "plan_quantization": "qat_lib.planner",
    "Optimized": "qat_lib.optimization",
    "optimize": "qat_lib.optimization",
    "PtqRecipe": "qat_lib.ptq",
    "Preprocessing": "qat_lib.preprocessing",
    "model_quantizers": "qat_lib.keras.quantizers",
    "quantize_model": "qat_lib.keras.quantize",
    "BaseQuantizeWrapper": "qat_lib.keras.wrappers",
    "NonWeightedBaseQuantizeWrapper": "qat_lib.keras.wrappers",
    "WeightedBaseQuantizeWrapper": "qat_lib.keras.wrappers",
    "TensorQuantizer": "qat_lib.keras.quantizers",
    "fake_quantize": "qat_lib.keras.quantizers",
    "apply_plan": "qat_lib.keras.apply.rebuild",
    "LayerConfig": "qat_lib.core.spec",
    "QuantizationSpec": "qat_lib.core.spec",
    "TensorTrace": "qat_lib.analysis.tensor_trace",
    "trace_tensor": "qat_lib.analysis.tracing",
    "CreateAssetsFolders": "qat_lib.utils",
    "convert_keras_model_to_onnx": "qat_lib.utils",
    "convert_saved_model_to_onnx": "qat_lib.utils",
}

if not TYPE_CHECKING:  # a type checker knows the names above and no others

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        elif name in __all__:
            value = importlib.import_module(f"qat_lib.{name}")
        elif name.endswith("QuantizeWrapper"):
            value = getattr(importlib.import_module("qat_lib.keras.wrappers"), name)
        else:
            raise AttributeError(f"module 'qat_lib' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
