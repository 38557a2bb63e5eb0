"""The histogram of PyTorch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qat_lib.calibrators.histogram import MagnitudeHistogram

PART = 1 << 20
"""Elements that are counted at once: the bins are worked out in float64."""


class Histogram(MagnitudeHistogram):
    """Counts of the magnitudes of PyTorch tensors, on their device."""

    def _count(self, tensor: Any, bins: int) -> np.ndarray:
        x = torch.as_tensor(tensor).detach().float().abs().reshape(-1)
        step = self.upper / bins
        counts = torch.zeros(bins, dtype=torch.int64, device=x.device)
        for part in x.split(PART):
            index = (part.double() / step).clamp_(max=bins - 1).long()
            counts += torch.bincount(index, minlength=bins)
        return np.asarray(counts.cpu().numpy())
