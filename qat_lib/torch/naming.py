"""Quantizers of a PyTorch model by name.

Names are their own, or the paths of their places.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from qat_lib.torch.tensor_quantizer import TensorQuantizer


def quantizers_of(module: nn.Module) -> dict[str, TensorQuantizer]:
    """Return a module's quantizers by path; a shared one comes once."""
    found = {}
    for path, part in module.named_modules():
        if isinstance(part, TensorQuantizer):
            found[path] = part
    return found


def model_quantizers(model: nn.Module, pattern: str | None = None) -> dict[str, TensorQuantizer]:
    """Return every TensorQuantizer of a model by name.

    Args:
        model: any ``nn.Module``. A quantizer without a name, or with that of another one, goes by
            its path, such as ``"conv1._input_quantizer"``.
        pattern: a regular expression that a name must match whole; None = all.
    """
    found = {}
    for name, quantizer in _names(model):
        if pattern is None or re.fullmatch(pattern, name):
            found[name] = quantizer
    return found


@contextmanager
def named_by_path(module: nn.Module) -> Iterator[None]:
    """Name quantizers without a name by their path, within the block."""
    before = [(quantizer, quantizer.name) for quantizer in quantizers_of(module).values()]
    for name, quantizer in _names(module):
        quantizer.name = name
    try:
        yield
    finally:
        for quantizer, name in before:
            quantizer.name = name


def _names(module: nn.Module) -> list[tuple[str, TensorQuantizer]]:
    """Return each quantizer with its unique name, or its path."""
    found = quantizers_of(module)
    count = Counter(quantizer.name for quantizer in found.values())
    names = []
    for path, quantizer in found.items():
        own = quantizer.name if count[quantizer.name] == 1 else ""
        names.append((own or path or "quantizer", quantizer))
    return names
