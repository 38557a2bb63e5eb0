"""The rows of an evaluation and their titles, in display order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qatline.components.artifacts.variants import CANDIDATE_VARIANT, HALF, Variant
from qatline.components.support.frameworks import FRAMEWORKS

REFERENCE = "fp32"
"""FP32 in its framework, on the test part; the row's ``backend`` is the framework's name."""

CONTROL = "fp32_control"
"""FP32 trained for as long as QAT, the same way; there only where ``qat.control`` asks for it."""

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

``fp16_engine`` and ``bf16_engine`` exist only where such an engine was built, ``champion_engine``
where the registry has a champion.
"""

FLOAT_ENGINES: Mapping[str, str] = {
    FP32_ENGINE: "FP32",
    **{variant.row: str(variant).upper() for variant in HALF},
}
"""Precision by row of the float engines, which INT8 must outrun."""


def reference_title(framework: str | None) -> str:
    """Return the title of the reference of a run with this framework."""
    return f"FP32 {FRAMEWORKS.get(framework or '', FRAMEWORKS['keras']).title}"


def row_title(name: str, backend: str | None = None) -> str:
    """Return the title of a row measured with ``backend``.

    The title of an unknown row is its name.
    """
    return reference_title(backend) if name == REFERENCE else ROWS.get(name, name)


def in_order(names: Iterable[str]) -> list[str]:
    """Return row names in display order: known rows first, then others."""
    found = list(names)
    known = [name for name in ROWS if name in found]
    return known + [name for name in found if name not in ROWS]
