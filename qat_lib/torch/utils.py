"""``reduce_amax`` under its path in pytorch-quantization."""

from __future__ import annotations

from qat_lib.torch.compat import reduce_amax

__all__ = ["reduce_amax"]
