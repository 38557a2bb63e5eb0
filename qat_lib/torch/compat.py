"""Functions of pytorch-quantization without a counterpart elsewhere in this package.

Its import paths also work: ``qat_lib.torch.utils``, ``qat_lib.torch.nn.functional`` and
``qat_lib.torch.nn.modules.clip``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import nn

from qat_lib.errors import SpecError

Bound: TypeAlias = torch.Tensor | float


def reduce_amax(
    input: torch.Tensor,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: bool = True,
) -> torch.Tensor:
    """Return the largest magnitude of a tensor, without gradient.

    Args:
        input: tensor of any shape.
        axis: axes to reduce, each in [-rank, rank). Default None: all axes, to a scalar.
        keepdims: whether to keep reduced axes with size 1. Default True. A single value is always
            a scalar.

    Raises:
        SpecError: ``axis`` has more axes than the tensor.
    """
    magnitude = input.detach().abs()
    if axis is None:
        return magnitude.amax()
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if len(axes) > input.dim():
        raise SpecError(
            f"Cannot reduce more axes than the tensor's {input.dim()}. Received: axis={axis!r}."
        )
    # amax with an empty tuple would reduce all axes.
    found = magnitude.amax(axes, keepdim=keepdims) if axes else magnitude
    return found.squeeze() if found.numel() == 1 and not isinstance(axis, int) else found


def clip(input: torch.Tensor, clip_value_min: Bound, clip_value_max: Bound) -> torch.Tensor:
    """Clip a tensor to trainable bounds, as in PACT (https://arxiv.org/abs/1805.06085).

    Args:
        input: float tensor of any shape.
        clip_value_min: lower bound, a number or a tensor that broadcasts against ``input``.
        clip_value_max: upper bound, the same.

    Returns:
        A tensor with the shape of ``input``. The gradient is 1 strictly between the bounds, else
        0; the gradient of a bound is the sum over the elements at or beyond it.

    Raises:
        SpecError: in the backward pass: a trained bound is not scalar.
    """
    low = torch.as_tensor(clip_value_min, dtype=input.dtype, device=input.device)
    high = torch.as_tensor(clip_value_max, dtype=input.dtype, device=input.device)
    clipped: torch.Tensor = _Clip.apply(input, low, high)
    return clipped


class _Clip(torch.autograd.Function):
    """Clipping, with gradients of the bounds."""

    @staticmethod
    def forward(ctx: Any, x: Any, low: Any, high: Any) -> Any:
        ctx.save_for_backward(x, low, high)
        return torch.maximum(torch.minimum(x, high), low)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, low, high = ctx.saved_tensors
        gradients = [dy * ((x > low) & (x < high))]
        for bound, beyond, trained in (
            (low, x <= low, ctx.needs_input_grad[1]),
            (high, x >= high, ctx.needs_input_grad[2]),
        ):
            if trained and bound.numel() != 1:
                raise SpecError(
                    f"A trained bound can only be scalar. Received: {tuple(bound.shape)}."
                )
            # At the bound itself, the gradient goes to the bound and not to the input.
            gradients.append((dy * beyond).sum().reshape(bound.shape) if trained else None)
        return tuple(gradients)


class Clip(nn.Module):
    """Clip tensors to fixed or trainable bounds.

    Args:
        clip_value_min: lower bound, a number or tensor.
        clip_value_max: upper bound, the same.
        learn_min: whether the lower bound is a parameter. Default False.
        learn_max: whether the upper bound is a parameter. Default False.

    Raises:
        SpecError: a trained bound is not a number.
    """

    def __init__(
        self,
        clip_value_min: Bound,
        clip_value_max: Bound,
        learn_min: bool = False,
        learn_max: bool = False,
    ) -> None:
        super().__init__()
        self.clip_value_min = _parameter(clip_value_min) if learn_min else clip_value_min
        self.clip_value_max = _parameter(clip_value_max) if learn_max else clip_value_max

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the clipped tensor, with the shape of ``inputs``."""
        return clip(inputs, self.clip_value_min, self.clip_value_max)


def _parameter(value: Any) -> nn.Parameter:
    bound = torch.as_tensor(value).detach().float().clone()
    if bound.numel() != 1:
        raise SpecError(f"A trained bound must be scalar. Received: {tuple(bound.shape)}.")
    return nn.Parameter(bound)
