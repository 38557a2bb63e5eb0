"""Comparison of an exported ONNX file with Keras, by output or layer."""

from __future__ import annotations

import os
from typing import Any

from qat_lib.export.comparing import compare_with
from qat_lib.export.parity_report import ParityReport
from qat_lib.keras.export.keras_reference import KerasReference


def check_parity(
    model: Any,
    path: str | os.PathLike[str],
    data: Any,
    *,
    layers: bool = False,
    batch_size: int = 32,
) -> ParityReport:
    """Compare ``path`` with the Keras ``model`` on ``data``.

    Args:
        model: the exported Keras model.
        path: the ONNX file.
        data: inputs of the Keras model (raw images for an export with embedded preprocessing): an
            array, a list or dict of arrays for several inputs, or an iterable of such batches.
        layers: whether to compare the outputs of all layers, too, to locate the first difference.
            Default False.
        batch_size: batch size for array data. Default 32.

    Returns:
        The report; ``report.passed`` is the verdict.

    Raises:
        ExportError: ONNX Runtime can't run the file, its outputs have other shapes, or the data is
            empty.

    Examples:
        >>> import numpy as np
        >>> from qat_lib import check_parity, load_model
        >>> images = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype("float32")
        >>> check_parity(load_model("model.keras"), "model.onnx", images).passed
        True
    """

    def open_reference(names: list[str]) -> KerasReference:
        return KerasReference(model, names)

    return compare_with(open_reference, path, data, layers=layers, batch_size=batch_size)
