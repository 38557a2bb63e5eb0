"""Usable scales of QuantizeLinear and DequantizeLinear: valid divisors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import ExportError
from qat_lib.graph.roles import PAIR
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.support.mappings import map_values

#: Runtimes multiply by 1 / scale in float32, which is infinite or flushed to 0 for smaller ones.
LEAST_SCALE = float(np.finfo(np.float32).tiny)


def describe_bad_scales(scale: np.ndarray[Any, Any]) -> str:
    """Return the problems of a scale's values; empty without any.

    >>> describe_bad_scales(np.array([0.1, 0.0, -1.0, np.nan], np.float32))
    '3 of 4 scales are unusable (1 zero, 1 negative, 1 NaN)'
    """
    # Converting a signaling NaN warns.
    with np.errstate(invalid="ignore"):
        values = scale.astype(np.float64).ravel()
    kinds = {
        "zero": values == 0,
        "negative": values < 0,
        "NaN": np.isnan(values),
        "infinite": np.isposinf(values),
        "subnormal": (values > 0) & (values < LEAST_SCALE),
    }
    counts = map_values(np.count_nonzero, kinds)
    bad = sum(counts.values())
    if not values.size:
        return "there is no scale"
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{bad} of {values.size} scales are unusable ({listed})" if bad else ""


def require_usable_scales(path: Path, graph: OnnxGraph) -> None:
    """Check that every constant scale in a file's graph is a valid divisor.

    Raises:
        ExportError: a scale is zero, negative, subnormal or not finite; the message names the first
            such node.
    """
    for node in graph.nodes:
        if node.op in PAIR and node.input(1):
            scale = graph.value(node.input(1))
            # "V" is the NumPy kind of bfloat16 and FP8 scales (ml_dtypes).
            problem = (
                describe_bad_scales(scale) if scale is not None and scale.dtype.kind in "fV" else ""
            )
            if problem:
                raise ExportError(
                    f"Expected scales that are positive, finite, normal numbers. In {path}, node "
                    f"{node.name!r}: {problem}. Calibrate again with data that reach this tensor, "
                    "and export again."
                )
