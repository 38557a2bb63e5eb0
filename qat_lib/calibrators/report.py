"""Results of a calibration, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """Statistics of one tensor and its calibrated range."""

    amax: float
    observed_max: float
    method: str
    values: int
    counts: np.ndarray | None = field(default=None, repr=False)
    edges: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationReport:
    """Statistics of every calibrated quantizer, by name."""

    tensors: dict[str, TensorStatistics]
    batches: int
    samples: int

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<CalibrationReport: {len(self.tensors)} tensors, {self.samples} samples>"
