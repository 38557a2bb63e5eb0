"""Quantizers of a PyTorch model by name, with their module path as the default name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from qat_lib.torch.tensor_quantizer import TensorQuantizer


def quantizers_of(module: nn.Module) -> dict[str, TensorQuantizer]:
    """Return the quantizers of a module by path, shared ones once."""
    found = {}
    for path, part in module.named_modules():
        if isinstance(part, TensorQuantizer):
            found[path] = part
    return found


def model_quantizers(model: nn.Module, pattern: str | None = None) -> dict[str, TensorQuantizer]:
    """Return every TensorQuantizer of a model by name.

    Args:
        model: any ``nn.Module``. A quantizer without a unique name is listed by its path, such as
            ``"conv1._input_quantizer"``.
        pattern: a regular expression for the whole name; None = all.
    """
    found = {}
    for name, quantizer in _names(model):
        if pattern is None or re.fullmatch(pattern, name):
            found[name] = quantizer
    return found


@contextmanager
def named_by_path(module: nn.Module) -> Iterator[None]:
    """Name unnamed quantizers by their path within the block."""
    before = [(quantizer, quantizer.name) for quantizer in quantizers_of(module).values()]
    for name, quantizer in _names(module):
        quantizer.name = name
    try:
        yield
    finally:
        for quantizer, name in before:
            quantizer.name = name


def _names(module: nn.Module) -> list[tuple[str, TensorQuantizer]]:
    """Return each quantizer with its unique name or its path."""
    found = quantizers_of(module)
    count = Counter(quantizer.name for quantizer in found.values())
    names = []
    for path, quantizer in found.items():
        # A repeated name is ambiguous, so all its quantizers are listed by path.
        own = quantizer.name if count[quantizer.name] == 1 else ""
        names.append((own or path or "quantizer", quantizer))
    return names
