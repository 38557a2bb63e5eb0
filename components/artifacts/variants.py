"""Variants of a model in a run, with their files and result rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from qatline.components.support.frameworks import FRAMEWORKS


class Variant(str, Enum):
    """A model variant; its value is its files' stem."""

    FP32 = "fp32"
    PTQ = "ptq"
    QAT = "qat"
    FP16 = "fp16"
    BF16 = "bf16"

    def __str__(self) -> str:
        return self.value

    @property
    def onnx(self) -> str:
        """Name of its ONNX file."""
        return f"{self}.onnx"

    @property
    def engine(self) -> str:
        """Name of its engine file."""
        return f"{self}.engine"

    @property
    def row(self) -> str:
        """Name of its engine's row in the results."""
        return f"{self}_engine"


REQUIRED = (Variant.FP32, Variant.PTQ, Variant.QAT)
"""Variants of every run; FP16 and BF16 are added if the backend supports them."""

HALF = (Variant.FP16, Variant.BF16)
"""The variants in 16-bit floating point."""

CANDIDATE_VARIANT = Variant.QAT
"""The judged and promoted variant."""


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
