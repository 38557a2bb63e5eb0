"""The quantizers of a PyTorch model, by name."""

from __future__ import annotations

import re
from typing import Any

from qat_lib.torch.tensor_quantizer import TensorQuantizer


def model_quantizers(model: Any, pattern: str | None = None) -> dict[str, TensorQuantizer]:
    """Return every TensorQuantizer of a model by name.

    A quantizer without a name is named after its place, such as ``"conv1.input_quantizer"``, and
    keeps that name.

    Args:
        model: any ``nn.Module``.
        pattern: a regular expression that a name must match whole; None = all.
    """
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, TensorQuantizer):
            module.name = module.name or _name_of(path)
            found[module.name] = module
    return {name: q for name, q in found.items() if pattern is None or re.fullmatch(pattern, name)}


def _name_of(path: str) -> str:
    """Return a quantizer's name: its path, without the underscore of a private attribute."""
    place, _, last = path.rpartition(".")
    last = last.removeprefix("_") or "quantizer"
    return f"{place}.{last}" if place else last
