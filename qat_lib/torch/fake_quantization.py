"""Fake quantization of PyTorch tensors, with gradients.

The arithmetic equals that of ``qat_lib.keras.quantizers.fake_quantize`` bit for bit: float32,
``clip(round_half_even(x / s), low, high) * s`` with ``s = amax / high``.
"""

from __future__ import annotations

from typing import Any

import torch

from qat_lib.core.ranges import AMAX_FLOOR, greatest_integer, integer_bounds

FP8 = (4, 3)
"""``num_bits`` of FP8: bits of the exponent and of the mantissa (E4M3, ``torch.float8_e4m3fn``)."""
FP8_HIGH = 448.0
"""Largest value of FP8."""


def greatest_value(num_bits: Any, unsigned: bool) -> float:
    """Return the greatest integer of a width, or the largest value of FP8."""
    return FP8_HIGH if num_bits == FP8 else greatest_integer(num_bits, unsigned)


def quantization_scale(
    amax: torch.Tensor, num_bits: Any = 8, unsigned: bool = False
) -> torch.Tensor:
    """Return the float32 scale of a range.

    The scale is ``max(amax, AMAX_FLOOR)`` over the greatest integer, or over FP8's largest value.
    """
    return scale_of(amax.float().clamp(min=AMAX_FLOOR), greatest_value(num_bits, unsigned))


def scale_of(amax: torch.Tensor, high: float) -> torch.Tensor:
    """Return ``amax / high``, rounded once, on every device.

    On CUDA, PyTorch divides a tensor by a number through the rounded inverse of the number.
    """
    return amax / torch.full_like(amax, high)


def fake_quantize(
    x: torch.Tensor,
    amax: torch.Tensor | float,
    *,
    num_bits: int = 8,
    narrow_range: bool = False,
    unsigned: bool = False,
    learned: bool = False,
) -> torch.Tensor:
    """Quantize to integers and dequantize again, with zero kept exactly.

    Args:
        x: float tensor of any shape, on any device.
        amax: range, a number or a tensor that broadcasts against ``x``; values below
            ``AMAX_FLOOR`` are raised to it.
        num_bits: width of the integers, 2 to 16. Default 8.
        narrow_range: whether to exclude the least integer (-128). Default False.
        unsigned: whether the integers are unsigned, 0 to 255. Default False.
        learned: whether a gradient flows to ``amax``: LSQ (Esser et al. 2020,
            https://arxiv.org/abs/1902.08153), scaled for a trained step ``s`` with
            ``amax = s * high``.

    Returns:
        A tensor with the shape and data type of ``x``. NaN is kept, infinities saturate. The
        gradient to ``x`` is the straight-through estimator with a clip mask: 1 inside of the
        range, else 0.
    """
    low, high = integer_bounds(num_bits, narrow_range, unsigned)
    range_ = torch.as_tensor(amax, dtype=torch.float32, device=x.device).clamp(min=AMAX_FLOOR)
    run = _LearnedQuantize if learned else _MaskedQuantize
    quantized: torch.Tensor = run.apply(x.float(), range_, low, high)
    return quantized.to(x.dtype)


def fake_quantize_fp8(x: torch.Tensor, amax: torch.Tensor | float) -> torch.Tensor:
    """Round to FP8 (E4M3) values, scaled so that ``amax`` is the largest, and back.

    Args:
        x: float tensor of any shape, on any device.
        amax: range, a number or a tensor that broadcasts against ``x``; values below
            ``AMAX_FLOOR`` are raised to it.

    Returns:
        A tensor with the shape and data type of ``x``. NaN is kept, infinities saturate. The
        gradient is the straight-through estimator with a clip mask.
    """
    range_ = torch.as_tensor(amax, dtype=torch.float32, device=x.device).clamp(min=AMAX_FLOOR)
    quantized: torch.Tensor = _Fp8Quantize.apply(x.float(), range_.detach())
    return quantized.to(x.dtype)


def quantized_integers(
    x: torch.Tensor, amax: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """Return ``clip(round_half_even(x / (amax / high)), low, high)`` as float32."""
    return (x / scale_of(amax, high)).round_().clamp_(low, high)


def inside_range(x: torch.Tensor, amax: torch.Tensor, low: float) -> torch.Tensor:
    """Return a mask of the values from ``low * amax`` to ``amax``, where the gradient passes."""
    return (x >= low * amax) & (x <= amax)


class _MaskedQuantize(torch.autograd.Function):
    """Fake quantization with a fixed range."""

    @staticmethod
    def forward(ctx: Any, x: Any, amax: Any, low: float, high: float) -> Any:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(inside_range(x, amax, low / high))
        return quantized_integers(x, amax, low, high).mul_(scale_of(amax, high))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return torch.where(inside, dy, 0.0), None, None, None


class _Fp8Quantize(torch.autograd.Function):
    """FP8 rounding with a fixed range."""

    @staticmethod
    def forward(ctx: Any, x: Any, amax: Any) -> Any:
        ctx.save_for_backward(inside_range(x, amax, -1.0))
        scale = scale_of(amax, FP8_HIGH)
        # Out of range, the cast saturates on some devices and gives NaN on others.
        kept = (x / scale).clamp_(-FP8_HIGH, FP8_HIGH)
        return kept.to(torch.float8_e4m3fn).float().mul_(scale)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return torch.where(inside, dy, 0.0), None


class _LearnedQuantize(torch.autograd.Function):
    """Fake quantization with a range that is trained."""

    @staticmethod
    def forward(ctx: Any, x: Any, amax: Any, low: float, high: float) -> Any:
        ctx.save_for_backward(x, amax)
        ctx.bounds = low, high
        return quantized_integers(x, amax, low, high).mul_(scale_of(amax, high))

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, amax = ctx.saved_tensors
        low, high = ctx.bounds
        inside = inside_range(x, amax, low / high)
        # d(q * s)/ds is q - x/s inside the range and q outside (LSQ, equation 3); amax = s * high.
        ratio = x / scale_of(amax, high)
        q = ratio.round().clamp_(low, high)
        dscale = torch.where(inside, q - ratio, q) * dy
        # The factor 1 / high is the chain rule; the root is the paper's gradient scale of the step
        # (section 2.2), with the number of elements per range.
        size = float(x.numel() // max(amax.numel(), 1))
        damax = dscale.sum_to_size(amax.shape) / high / (size * high) ** 0.5
        return torch.where(inside, dy, 0.0), damax, None, None
