"""Mode in which a quantizer marks its tensor for ONNX export.

The tensor is marked instead of quantized. The mode is a context variable, so that it ends with its
``with`` block, whatever happens in it, and does not leak into other threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_exporting: ContextVar[bool] = ContextVar("qat_lib_torch_exporting", default=False)


@contextmanager
def export_mode() -> Iterator[None]:
    """Make every enabled quantizer mark its tensor, within the block."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


def is_exporting() -> bool:
    """Whether the code runs inside ``export_mode``."""
    return _exporting.get()


@torch.library.custom_op("qatline::quantizer", mutates_args=())
def quantizer_marker(x: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG001 - read in the graph
    """Return a copy of ``x``.

    An operator may not return its input itself.
    """
    return x.clone()


@quantizer_marker.register_fake
def _marked_shape(x: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG001 - of the operator
    return torch.empty_like(x)


def mark(x: torch.Tensor, quantizer: str) -> torch.Tensor:
    """Return ``x`` through an operator that names its Q/DQ pair's quantizer."""
    marked: torch.Tensor = quantizer_marker(x, quantizer)
    return marked
