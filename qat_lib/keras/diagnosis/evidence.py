"""What is known of one quantizer, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qat_lib.core.spec import LayerConfig
from qat_lib.keras.diagnosis.report import Cause
from qat_lib.keras.diagnosis.sites import Site
from qat_lib.keras.diagnosis.statistics import ErrorSums

DEAD = 1e-7
"""Share of the tensor's largest magnitude up to which a channel is zero."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A cause, in words, with what to change."""

    cause: Cause
    message: str
    change: tuple[LayerConfig, ...] = ()
    advice: str = ""
    channels: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one quantizer.

    Attributes:
        site: where it is.
        sums: what it did to its tensor.
        quantizer: the quantizer itself.
    """

    site: Site
    sums: ErrorSums
    quantizer: Any

    @property
    def live(self) -> np.ndarray:
        """Mask of the channels that carry a signal."""
        peaks = self.sums.peaks
        return np.asarray(peaks > DEAD * float(peaks.max(initial=0.0)))

    @property
    def spread(self) -> float:
        """Largest magnitude of a channel over the median channel's; 1 of no signal."""
        peaks = self.sums.peaks[self.live]
        return float(peaks.max() / np.median(peaks)) if len(peaks) else 1.0

    @property
    def is_per_channel(self) -> bool:
        """Whether each channel has a range of its own."""
        return self.quantizer.channel_axes is not None
