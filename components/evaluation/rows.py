"""The rows of an evaluation and their titles, in display order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from components.variants import CANDIDATE_VARIANT, Variant

REFERENCE = "fp32"
"""FP32 in Keras, on the test part."""

FP32_ENGINE = Variant.FP32.row
CANDIDATE = CANDIDATE_VARIANT.row

ROWS: Mapping[str, str] = {
    REFERENCE: "FP32 Keras",
    FP32_ENGINE: "FP32 engine",
    Variant.FP16.row: "FP16 engine",
    Variant.PTQ.row: "PTQ INT8 engine",
    CANDIDATE: "QAT INT8 engine",
}
"""Title by name. ``fp16_engine`` is there only where an FP16 engine was built."""


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of rows as they are shown: the known ones first, then any other."""
    found = list(names)
    known = [name for name in ROWS if name in found]
    return known + [name for name in found if name not in ROWS]
