"""Temporary inference mode of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_inference(module: nn.Module) -> Iterator[None]:
    """Set a module and its submodules to inference mode within the block."""
    # Per submodule: frozen batch norms may be in inference mode inside of a training model.
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode
