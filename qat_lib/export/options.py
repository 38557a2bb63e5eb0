"""The options of an export as one validated value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from qat_lib.errors import ExportError
from qat_lib.options import Backend, FloatPrecision, WeightForm

OLDEST_OPSET = 13
"""QuantizeLinear has an axis since operator set 13."""

NEWEST_OPSET = 21
"""Newest operator set offered. tf2onnx writes up to 18; ONNX's version converter does the rest, on
the graph without weights. float16 Q/DQ scales need 19."""

HALF_OPSET = 19
LARGEST_BATCH = 65_536
_CHOICES = {
    "target": get_args(Backend),
    "weights": get_args(WeightForm),
    "float_precision": get_args(FloatPrecision),
}


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How a graph is lowered; see :func:`qat_lib.export.export.export_onnx` for what each means.

    float16 raises ``opset`` to 19.

    Raises:
        ExportError: a value is not one of those allowed.
    """

    target: str = "tensorrt"
    opset: int = 17
    weights: str = "int8"
    float_precision: str = "fp32"
    channels_first_input: bool = False
    batch: int | None = None
    embed_preprocessing: bool = False

    def __post_init__(self) -> None:
        if self.float_precision == "fp16":
            object.__setattr__(self, "opset", max(self.opset, HALF_OPSET))
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ExportError(
                    f"Expected {name} to be one of {', '.join(allowed)}. Received: {value!r}."
                )
        if self.batch is not None and (
            isinstance(self.batch, bool) or not 1 <= self.batch <= LARGEST_BATCH
        ):
            raise ExportError(
                f"Expected a batch size from 1 to {LARGEST_BATCH}, or None for an open one. Received: {self.batch!r}."
            )
