"""Export mode: quantizers mark their tensor for ONNX export instead of quantizing it.

The mode is a context variable: it ends with its ``with`` block, even on errors, and does not leak
into other threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from qat_lib.errors import ExportError

_exporting: ContextVar[bool] = ContextVar("qat_lib_torch_exporting", default=False)
_writing: ContextVar[bool] = ContextVar("qat_lib_torch_writing_pairs", default=False)


@contextmanager
def export_mode() -> Iterator[None]:
    """Let every enabled quantizer mark its tensor within the block."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


def is_exporting() -> bool:
    """Return whether the code runs inside ``export_mode``."""
    return _exporting.get()


@torch.library.custom_op("qatline::quantizer", mutates_args=())
def quantizer_marker(x: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG001 - read in the graph
    """Return a copy of ``x``, since custom operators must not return their input itself."""
    return x.clone()


@quantizer_marker.register_fake
def _marked_shape(x: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG001 - of the operator
    return torch.empty_like(x)


def mark(x: torch.Tensor, quantizer: str) -> torch.Tensor:
    """Return ``x`` through an operator with the name of its quantizer."""
    marked: torch.Tensor = quantizer_marker(x, quantizer)
    return marked


@contextmanager
def enable_onnx_export() -> Iterator[None]:
    """Let ``torch.onnx.export`` write the Q/DQ pairs of quantizers within the block.

    This is the export of pytorch-quantization, for FP8 and custom graphs. ``export_onnx`` writes
    files for the engines: verified, with INT8 weights and folded batch norms.

    Every enabled quantizer requires 8 bits or FP8, one range or one axis, and a range.
    ``opset_version`` must be at least 13, for FP8 19.

    Raises:
        ExportError: in ``torch.onnx.export``: a quantizer can't be written, or ``dynamo=False``.
    """
    token = _writing.set(True)
    try:
        yield
    finally:
        _writing.reset(token)


def writes_pairs() -> bool:
    """Return whether ``torch.onnx.export`` traces a model within ``enable_onnx_export``.

    Raises:
        ExportError: the TorchScript exporter runs; it would write the arithmetic of a pair.
    """
    if not _writing.get():
        return False
    if torch.jit.is_tracing() and not torch.compiler.is_exporting():
        raise ExportError(
            "Expected torch.onnx.export with dynamo=True within enable_onnx_export(). Received: the "
            "TorchScript exporter. Leave dynamo to its default."
        )
    return bool(torch.compiler.is_exporting())


def write_pair(
    x: torch.Tensor, scale: torch.Tensor, axis: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return ``x`` through a Q/DQ pair of the exported graph.

    Args:
        x: tensor to quantize.
        scale: float32 scale, one value or one for each index of ``axis``.
        axis: axis of the scales; None = one scale.
        dtype: type of the stored values: int8, uint8 or float8_e4m3fn.
    """
    scale = scale.reshape(() if axis is None else (-1,))
    # The zero point also defines the quantized type.
    zero = torch.zeros(scale.shape, dtype=dtype)
    attributes: Any = {} if axis is None else {"axis": axis}
    # Before operator set 19 both operators support float32 only.
    operands = (x.float(), scale, zero)
    stored = torch.onnx.ops.symbolic(
        "QuantizeLinear", operands, attributes, dtype=dtype, shape=x.shape
    )
    restored = torch.onnx.ops.symbolic(
        "DequantizeLinear", (stored, scale, zero), attributes, dtype=torch.float32, shape=x.shape
    )
    return restored.to(x.dtype)
