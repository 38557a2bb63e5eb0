"""``Clip`` under the path that pytorch-quantization gives it."""

from __future__ import annotations

from qat_lib.torch.compat import Clip

__all__ = ["Clip"]
