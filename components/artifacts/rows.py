"""Rows of an evaluation and their titles, in display order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qatline.components.artifacts.variants import CANDIDATE_VARIANT, HALF, Variant
from qatline.components.support.frameworks import FRAMEWORKS

REFERENCE = "fp32"
"""FP32 in its framework, on the test part; the row's ``backend`` is the framework's name."""

CONTROL = "fp32_control"
"""FP32 control with the same training as QAT; exists only with ``qat.control``."""

FP32_ENGINE = Variant.FP32.row
CANDIDATE = CANDIDATE_VARIANT.row
CHAMPION = "champion_engine"

ROWS: Mapping[str, str] = {
    REFERENCE: "FP32 Keras",
    CONTROL: "FP32 as long",
    FP32_ENGINE: "FP32 engine",
    Variant.FP16.row: "FP16 engine",
    Variant.BF16.row: "BF16 engine",
    Variant.PTQ.row: "PTQ INT8 engine",
    CANDIDATE: "QAT INT8 engine",
    CHAMPION: "Champion engine",
}
"""Title by name.

``fp16_engine`` and ``bf16_engine`` exist only if such an engine was built, ``champion_engine`` only
if the registry has a champion.
"""

FLOAT_ENGINES: Mapping[str, str] = {
    FP32_ENGINE: "FP32",
    **{variant.row: str(variant).upper() for variant in HALF},
}
"""Precision by row of the float engines, the competitors of INT8."""


def reference_title(framework: str | None) -> str:
    """Return the title of the reference row for a framework."""
    return f"FP32 {FRAMEWORKS.get(framework or '', FRAMEWORKS['keras']).title}"


def row_title(name: str, backend: str | None = None) -> str:
    """Return the title of a row measured with ``backend``, or the name of an unknown row."""
    return reference_title(backend) if name == REFERENCE else ROWS.get(name, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Return row names in display order: known rows first, then others."""
    found = list(names)
    known = [name for name in ROWS if name in found]
    return known + [name for name in found if name not in ROWS]
