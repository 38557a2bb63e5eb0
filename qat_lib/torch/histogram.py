"""Histogram of PyTorch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from qat_lib.calibrators.histogram import MagnitudeHistogram

PART = 1 << 20
"""Elements counted at once, to bound the memory of the bin indices in float64."""


class Histogram(MagnitudeHistogram):
    """Counts of the magnitudes of PyTorch tensors, on their device."""

    def _count(
        self, tensor: Any, bins: int, gains: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        whole = torch.as_tensor(tensor).detach().float().abs()
        x = whole.reshape(-1)
        step = self.upper / bins
        counts = torch.zeros(bins, dtype=torch.int64, device=x.device)
        costs = torch.zeros(bins, dtype=torch.float64, device=x.device)
        weights = torch.zeros(0, dtype=torch.float64, device=x.device)
        if gains is not None:
            weights = torch.as_tensor(gains, device=x.device).expand(whole.shape).reshape(-1)
        for start in range(0, len(x), PART):
            part = slice(start, start + PART)
            # float64 as in NumPy, so that every device counts into the same bins.
            index = (x[part].double() / step).clamp_(max=bins - 1).long()
            counts += torch.bincount(index, minlength=bins)
            if gains is not None:
                costs += torch.bincount(index, weights=weights[part], minlength=bins)
        found = np.asarray(counts.cpu().numpy())
        return found, None if gains is None else np.asarray(costs.cpu().numpy())
