"""The quantizers of a PyTorch model, by name: their own, or the path of their place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from qat_lib.torch.tensor_quantizer import TensorQuantizer


def quantizers_of(module: nn.Module) -> dict[str, TensorQuantizer]:
    """Return the quantizers of a module by the path of each; a shared one comes once."""
    found = {}
    for path, part in module.named_modules():
        if isinstance(part, TensorQuantizer):
            found[path] = part
    return found


def model_quantizers(model: nn.Module, pattern: str | None = None) -> dict[str, TensorQuantizer]:
    """Return every TensorQuantizer of a model by name.

    Args:
        model: any ``nn.Module``. A quantizer without a name of its own goes by its path, such as
            ``"conv1._input_quantizer"``.
        pattern: a regular expression that a name must match whole; None = all.
    """
    found = {}
    for path, quantizer in quantizers_of(model).items():
        name = quantizer.name or _name_at(path)
        if pattern is None or re.fullmatch(pattern, name):
            found[name] = quantizer
    return found


@contextmanager
def named_by_path(module: nn.Module) -> Iterator[None]:
    """Give each quantizer without a name its path, within the block."""
    unnamed = [(path, q) for path, q in quantizers_of(module).items() if not q.name]
    for path, quantizer in unnamed:
        quantizer.name = _name_at(path)
    try:
        yield
    finally:
        for _, quantizer in unnamed:
            quantizer.name = ""


def _name_at(path: str) -> str:
    return path or "quantizer"
