"""A module in inference mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_inference(module: nn.Module) -> Iterator[None]:
    """Set a module and its submodules to inference mode, within the block."""
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode
