"""Compare an exported file with its model within its data types' precision.

In FP32 the labels must be the same but for ties. FP16 rounds every tensor between two layers, which
moves values over the edges between two INT8 levels, and so labels that are close. There the same
lowering in FP32 must agree with the model label by label, and the outputs in FP16 must lie within a
bound. What it does to accuracy is measured on the engine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qat_lib.errors import VerificationError
from qatline.components.artifacts.exported import ParityRecord
from qatline.components.training.framework import Framework

HALF_BOUND = 5e-2
"""Largest accepted difference of a file in FP16 from its model, as a share of the largest output."""


def compare_with_model(
    framework: Framework,
    model: Any,
    path: Path,
    images: Any,
    *,
    export_in_fp32: Callable[[Path], Any] | None = None,
) -> ParityRecord:
    """Compare an exported file with the model it came from.

    Args:
        framework: the model's.
        model: the model.
        path: the ONNX file.
        images: inputs, as the data has them.
        export_in_fp32: exports the same model to another path with FP32 for non-quantized layers; given for a
            file in FP16.

    Returns:
        The parity; of a file in FP16 with ``bound`` and, as ``fp32``, that of the same export in
        FP32.

    Raises:
        VerificationError: they do not agree.
    """
    report = framework.check_parity(model, path, images)
    parity = ParityRecord.model_validate(report.to_dict())
    if export_in_fp32 is None:
        if not report.passed:
            raise VerificationError(
                f"{path.name} {report}: {report.mismatches} labels differ beyond a tie. Find the "
                f"layer where the difference starts with: {framework.layer_check}"
            )
        return parity
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        twin = Path(folder) / path.name
        export_in_fp32(twin)
        exact = compare_with_model(framework, model, twin, images)
    passed = bool(report.largest_difference <= HALF_BOUND * report.magnitude)
    if not passed:
        raise VerificationError(
            f"{path.name} in FP16 differs from {framework.traits.title} by up to {report.largest_difference:.3g}; "
            f"expected at most {HALF_BOUND:g} of the largest output, {report.magnitude:.3g}. In "
            "FP32 it agrees: export it with export.float_precision=fp32 or engine.fp16=never."
        )
    return parity.model_copy(update={"passed": passed, "bound": HALF_BOUND, "fp32": exact})
