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
    from qat_lib.apply.rebuild import apply_plan
    from qat_lib.calibration import (
        CalibrationReport,
        calibrate,
    )
    from qat_lib.correction import (
        BiasReport,
        RoundingReport,
        adaround,
        correct_bias,
        equalize,
    )
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
    from qat_lib.deployment import Deployment
    from qat_lib.diagnosis import (
        Diagnosis,
        diagnose,
    )
    from qat_lib.engines import (
        BuildSpec,
        build_engine,
        load_engine,
    )
    from qat_lib.export import (
        check_parity,
        export_onnx,
        verify_onnx,
    )
    from qat_lib.folding import folded_weights
    from qat_lib.graph.layer_graph import LayerGraph
    from qat_lib.loading import load_model
    from qat_lib.placement import (
        PlacementResult,
        search,
    )
    from qat_lib.plan import (
        QuantizationPlan,
        QuantizerEntry,
        SkippedLayer,
    )
    from qat_lib.planner import plan_quantization
    from qat_lib.preprocessing import Preprocessing
    from qat_lib.ptq import PtqRecipe
    from qat_lib.quantize import (
        model_quantizers,
        quantize_model,
    )
    from qat_lib.quantize_wrappers import (
        BaseQuantizeWrapper,
        NonWeightedBaseQuantizeWrapper,
        WeightedBaseQuantizeWrapper,
    )
    from qat_lib.quantizers import (
        TensorQuantizer,
        fake_quantize,
    )
    from qat_lib.spec import (
        LayerConfig,
        QuantizationSpec,
    )
    from qat_lib.tensor_trace import TensorTrace
    from qat_lib.tracing import trace_tensor
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
    "CalibrationReport": "qat_lib.calibration",
    "calibrate": "qat_lib.calibration",
    "BiasReport": "qat_lib.correction",
    "RoundingReport": "qat_lib.correction",
    "adaround": "qat_lib.correction",
    "correct_bias": "qat_lib.correction",
    "equalize": "qat_lib.correction",
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
    "Deployment": "qat_lib.deployment",
    "Diagnosis": "qat_lib.diagnosis",
    "diagnose": "qat_lib.diagnosis",
    "BuildSpec": "qat_lib.engines",
    "build_engine": "qat_lib.engines",
    "load_engine": "qat_lib.engines",
    "check_parity": "qat_lib.export",
    "export_onnx": "qat_lib.export",
    "verify_onnx": "qat_lib.export",
    "folded_weights": "qat_lib.folding",
    "LayerGraph": "qat_lib.graph.layer_graph",
    "load_model": "qat_lib.loading",
    "PlacementResult": "qat_lib.placement",
    "search": "qat_lib.placement",
    "QuantizationPlan": "qat_lib.plan",
    "QuantizerEntry": "qat_lib.plan",
    "SkippedLayer": "qat_lib.plan",
    "plan_quantization": "qat_lib.planner",
    "PtqRecipe": "qat_lib.ptq",
    "Preprocessing": "qat_lib.preprocessing",
    "model_quantizers": "qat_lib.quantize",
    "quantize_model": "qat_lib.quantize",
    "BaseQuantizeWrapper": "qat_lib.quantize_wrappers",
    "NonWeightedBaseQuantizeWrapper": "qat_lib.quantize_wrappers",
    "WeightedBaseQuantizeWrapper": "qat_lib.quantize_wrappers",
    "TensorQuantizer": "qat_lib.quantizers",
    "fake_quantize": "qat_lib.quantizers",
    "apply_plan": "qat_lib.apply.rebuild",
    "LayerConfig": "qat_lib.spec",
    "QuantizationSpec": "qat_lib.spec",
    "TensorTrace": "qat_lib.tensor_trace",
    "trace_tensor": "qat_lib.tracing",
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
            value = getattr(importlib.import_module("qat_lib.quantize_wrappers"), name)
        else:
            raise AttributeError(f"module 'qat_lib' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
