"""Measurements of one quantizer, and the diagnosis derived from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qat_lib.core.spec import LayerConfig
from qat_lib.keras.diagnosis.report import Cause
from qat_lib.keras.diagnosis.sites import Site
from qat_lib.keras.diagnosis.statistics import ErrorSums

DEAD = 1e-7
"""Share of the largest magnitude of the tensor up to which a channel counts as zero."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A cause with its message and fix."""

    cause: Cause
    message: str
    change: tuple[LayerConfig, ...] = ()
    advice: str = ""
    channels: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Measurements of one quantizer.

    Attributes:
        site: position in the model.
        sums: error sums of the quantized tensor.
        quantizer: the quantizer itself.
    """

    site: Site
    sums: ErrorSums
    quantizer: Any

    @property
    def live(self) -> np.ndarray:
        """Mask of the channels with a signal."""
        peaks = self.sums.peaks
        return np.asarray(peaks > DEAD * float(peaks.max(initial=0.0)))

    @property
    def spread(self) -> float:
        """Largest magnitude of a channel over the median channel's; 1 without a signal."""
        peaks = self.sums.peaks[self.live]
        return float(peaks.max() / np.median(peaks)) if len(peaks) else 1.0

    @property
    def is_per_channel(self) -> bool:
        """Whether each channel has a separate range."""
        return self.quantizer.channel_axes is not None
