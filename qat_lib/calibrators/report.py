"""What calibration saw and chose, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """What calibration saw of one tensor, and the range that it chose."""

    amax: float
    observed_max: float
    method: str
    values: int
    counts: np.ndarray | None = field(default=None, repr=False)
    edges: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationReport:
    """The statistics of every calibrated quantizer, by name."""

    tensors: dict[str, TensorStatistics]
    batches: int
    samples: int

    def __repr__(self) -> str:
        """Return the report in a line."""
        return f"<CalibrationReport: {len(self.tensors)} tensors, {self.samples} samples>"
