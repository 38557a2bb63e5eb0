"""Helpers with the names and the behaviour of NVIDIA's tensorflow-quantization toolkit.

For more features use ``qat_lib.export.export_onnx`` (verified export), ``qat_lib.LayerGraph``
(the graph of a model) and ``qat_lib.plan_quantization`` (quantizers with reasons).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qat_lib.utils.assets import AssetFolder, CreateAssetsFolders
    from qat_lib.utils.neighbours import find_my_predecessors, find_my_successors
    from qat_lib.utils.onnx_files import convert_keras_model_to_onnx, convert_saved_model_to_onnx
    from qat_lib.utils.traveller import KerasModelTraveller

__all__ = [
    "AssetFolder",
    "CreateAssetsFolders",
    "KerasModelTraveller",
    "convert_keras_model_to_onnx",
    "convert_saved_model_to_onnx",
    "find_my_predecessors",
    "find_my_successors",
]

# Imported on first use: asset folders need no TensorFlow.
_HOMES = {
    "AssetFolder": "qat_lib.utils.assets",
    "CreateAssetsFolders": "qat_lib.utils.assets",
    "KerasModelTraveller": "qat_lib.utils.traveller",
    "convert_keras_model_to_onnx": "qat_lib.utils.onnx_files",
    "convert_saved_model_to_onnx": "qat_lib.utils.onnx_files",
    "find_my_predecessors": "qat_lib.utils.neighbours",
    "find_my_successors": "qat_lib.utils.neighbours",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
