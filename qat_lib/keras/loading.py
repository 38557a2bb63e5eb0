"""Loading of .keras files in safe mode, with the layers of this library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from qat_lib.calibrators.batches import BatchReader
from qat_lib.errors import CalibrationError, ConfigError, UnsupportedModelError
from qat_lib.files.keras_archive import check_keras_archive
from qat_lib.keras.apply.recursion import deep_graphs
from qat_lib.keras.structure import has_graph, layers_of, with_graph
from qat_lib.keras.wrappers import WeightedBaseQuantizeWrapper  # the import registers all layers
from qat_lib.support.foreign_errors import describe_error


def load_model(path: str | Path) -> Any:
    """Load a ``.keras`` file, quantized or not, in safe mode, uncompiled.

    The unpacked size is limited to 256 MiB or 16 times the size of the file, whichever is larger;
    the environment variable ``QATLINE_MAX_UNPACKED`` (such as ``4GiB``) sets another limit.

    Raises:
        UnsupportedModelError: the file is missing, damaged or too large when unpacked, or contains
            code (a Lambda layer), which safe mode rejects.
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
                "it contains a Lambda layer, whose code safe mode does not run. "
                "Replace it by a layer class"
            )
        raise UnsupportedModelError(
            f"The model file {str(file)!r} can't be loaded: {reason}."
        ) from error
    return model


def functional_model(model: Any, data: Any) -> Any:
    """Return a model with a graph of layers, of a ``.keras`` file or of a subclassed model.

    Args:
        model: a Keras model, or the path of a file.
        data: one input, or several by name, in any form that ``calibrate`` takes; a subclassed
            model gets inputs of the same shapes.

    Raises:
        UnsupportedModelError: see ``load_model`` and ``with_graph``.
        CalibrationError: the data has another form.
    """
    if isinstance(model, str | os.PathLike):
        model = load_model(Path(model))
    if not isinstance(model, keras.Model) or has_graph(model):
        return model
    reader = BatchReader(
        inputs=1, is_array=lambda part: hasattr(part, "shape"), convert=lambda part: part
    )
    for batch in reader.batches(data, 1):
        if isinstance(batch, Mapping):
            inputs = {name: _input_like(part, name) for name, part in batch.items()}
            return with_graph(model, inputs)
        return with_graph(model, keras.tree.map_structure(_input_like, batch))
    raise CalibrationError("Expected at least one sample of calibration data. Received none.")


def _input_like(batch: Any, name: str | None = None) -> Any:
    kind = keras.backend.standardize_dtype(batch.dtype)
    return keras.Input(batch.shape[1:], dtype="float32" if kind == "float64" else kind, name=name)


def bind_weights(model: Any) -> None:
    """Bind each weight quantizer to its variable, as in building a wrapper."""
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
