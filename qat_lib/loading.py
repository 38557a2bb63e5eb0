"""Loading of .keras files, in safe mode and with the library's layers known."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import keras

import qat_lib.quantize_wrappers  # registers the wrappers with Keras
import qat_lib.quantizers  # noqa: F401  registers TensorQuantizer
from qat_lib.errors import UnsupportedModelError
from qat_lib.quantize_wrappers import WeightedBaseQuantizeWrapper
from qat_lib.recursion import deep_graphs


def load_model(path: str | Path) -> Any:
    """Load a ``.keras`` file, quantized or not, in safe mode and without compiling it.

    Raises:
        UnsupportedModelError: the file is missing, damaged, or holds code (a Lambda layer) that safe mode refuses.
    """
    file = Path(path)
    if not file.is_file():
        raise UnsupportedModelError(f"There is no model file {str(file)!r}: expected a .keras file.")
    if not zipfile.is_zipfile(file):
        raise UnsupportedModelError(
            f"The model file {str(file)!r} can't be loaded: expected a .keras file, which is a zip archive; "
            "it is something else, or only a part of one. Save the model again, as .keras."
        )
    try:
        with deep_graphs():
            model = keras.models.load_model(file, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises many kinds for a damaged file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "Lambda" in str(error) or "lambda" in str(error) or "unsafe" in str(error).lower():
            reason = "it holds a Lambda layer, whose code safe mode does not run. Replace it by a layer class"
        raise UnsupportedModelError(f"The model file {str(file)!r} can't be loaded: {reason}.") from error
    bind_weights(model)
    return model


def bind_weights(model: Any) -> None:
    """Tell every weight quantizer which variable it follows (building the wrapper does so already)."""
    for layer in model._flatten_layers():
        if isinstance(layer, WeightedBaseQuantizeWrapper) and layer.weight_quantizers and layer.kernels:
            for kernel, quantizer in zip(layer.kernels, layer.weight_quantizers, strict=True):
                quantizer.bind_weight(layer.kernel_variable(kernel))
