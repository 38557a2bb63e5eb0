"""Comparison of an exported file with its model, within the precision of its data types.

FP16 rounds every tensor between two layers and thereby moves values across the boundary of two INT8
levels, so that close labels may change. Labels therefore decide about the same lowering in FP32;
the file in FP16 is judged by its differences alone. The effect on accuracy is measured on the
engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qat_lib.errors import VerificationError
from qatline.components.artifacts.exported import ParityRecord
from qatline.components.training.framework import Framework


def compare_with_model(
    framework: Framework,
    model: Any,
    path: Path,
    inputs: Any,
    *,
    export_in_fp32: Callable[[Path], Any] | None = None,
) -> ParityRecord:
    """Compare an exported file with its model.

    Args:
        framework: framework of the model.
        model: the model.
        path: the ONNX file.
        inputs: restartable batches of inputs in the layout of the data, each an array or several
            by name.
        export_in_fp32: exports the same model to another path with FP32 for non-quantized layers;
            given for a file in FP16.

    Returns:
        The parity; for a file in FP16 with that of the same export in FP32, as ``fp32``.

    Raises:
        VerificationError: file and model disagree.
    """
    report = framework.check_parity(model, path, inputs)
    parity = ParityRecord.model_validate(report.to_dict())
    problem = f"{path.name} {report}"
    if export_in_fp32 is None:
        if not report.passed:
            labels = f": {report.mismatches} labels differ beyond a tie" * bool(report.mismatches)
            raise VerificationError(
                f"{problem}{labels}. Find the layer where the difference starts with: "
                f"{framework.layer_check}"
            )
        return parity
    # FP16 has wide bounds, which hide mistakes of the conversion. In FP32 the graph has narrow ones.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        twin = Path(folder) / path.name
        export_in_fp32(twin)
        exact = compare_with_model(framework, model, twin, inputs)
    if not report.passed:
        raise VerificationError(
            f"{problem}. It is in FP16. In FP32 it agrees: export it with "
            "export.float_precision=fp32 or engine.fp16=never."
        )
    return parity.model_copy(update={"fp32": exact})
