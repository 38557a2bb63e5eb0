"""``reduce_amax`` under the path that pytorch-quantization gives it."""

from __future__ import annotations

from qat_lib.torch.compat import reduce_amax

__all__ = ["reduce_amax"]
