"""``clip`` under its path in pytorch-quantization."""

from __future__ import annotations

from qat_lib.torch.compat import clip

__all__ = ["clip"]
