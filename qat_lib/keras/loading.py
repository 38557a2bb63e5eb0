"""Load .keras files in safe mode with the library's layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from qat_lib.errors import ConfigError, UnsupportedModelError
from qat_lib.files.keras_archive import check_keras_archive
from qat_lib.keras.apply.recursion import deep_graphs
from qat_lib.keras.structure import layers_of
from qat_lib.keras.wrappers import WeightedBaseQuantizeWrapper  # the import registers all layers
from qat_lib.support.foreign_errors import describe_error


def load_model(path: str | Path) -> Any:
    """Load a ``.keras`` file, quantized or not, in safe mode, uncompiled.

    The file may unpack to 256 MiB, or to 16 times its size where that is more; the environment
    variable ``QATLINE_MAX_UNPACKED`` (such as ``4GiB``) sets another limit.

    Raises:
        UnsupportedModelError: the file is missing, damaged, unpacks to more than is allowed, or
            holds code (a Lambda layer) that safe mode refuses.
    """
    file = Path(path)
    _check(file)
    try:
        with deep_graphs():
            model = keras.models.load_model(file, compile=False, safe_mode=True)
            bind_weights(model)
    except Exception as error:  # Keras raises many kinds for a damaged file
        reason = describe_error(error)
        if "Lambda" in reason and "safe_mode" in reason:
            reason = (
                "it holds a Lambda layer, whose code safe mode does not run. "
                "Replace it by a layer class"
            )
        raise UnsupportedModelError(
            f"The model file {str(file)!r} can't be loaded: {reason}."
        ) from error
    return model


def bind_weights(model: Any) -> None:
    """Tell each weight quantizer its variable; building the wrapper does so already."""
    for layer in layers_of(model):
        if (
            isinstance(layer, WeightedBaseQuantizeWrapper)
            and layer.weight_quantizers
            and layer.kernels
        ):
            for kernel, quantizer in zip(layer.kernels, layer.weight_quantizers, strict=True):
                quantizer.bind_weight(layer.kernel_variable(kernel))


def _check(file: Path) -> None:
    if file.suffix != ".keras":
        raise UnsupportedModelError(
            f"Expected a .keras file. Received: {str(file)!r}. Save the model again, as .keras."
        )
    try:
        check_keras_archive(file)
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise UnsupportedModelError(
            f"There is no model file {str(file)!r}: expected a .keras file."
        ) from error
    except OSError as error:
        raise UnsupportedModelError(
            f"The model file {str(file)!r} can't be read: {error.strerror}."
        ) from error
    except ValueError as error:
        raise UnsupportedModelError(
            f"The model file {str(file)!r} can't be loaded: expected a .keras file, which is a zip "
            "archive, but "
            f"{error}."
        ) from error
