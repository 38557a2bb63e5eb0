"""The rows of an evaluation in the order in which they are shown, each with its title."""

from __future__ import annotations

from collections.abc import Mapping

REFERENCE = "fp32"
FP32_ENGINE = "fp32_engine"
FP16_ENGINE = "fp16_engine"
PTQ_ENGINE = "ptq_engine"
CANDIDATE = "qat_engine"

ROWS: Mapping[str, str] = {
    REFERENCE: "FP32 Keras",
    FP32_ENGINE: "FP32 engine",
    FP16_ENGINE: "FP16 engine",
    PTQ_ENGINE: "PTQ INT8 engine",
    CANDIDATE: "QAT INT8 engine",
}
"""Title by name. ``fp16_engine`` is there only where an FP16 engine was built."""
