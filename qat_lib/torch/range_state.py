"""Range of a PyTorch quantizer, a buffer or a trained step, saved and loaded with the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from qat_lib.core.ranges import AMAX_FLOOR, checked_range, least_step, range_shape, reduced_axes
from qat_lib.torch.fake_quantization import greatest_value

RANGE, STEP, SWITCHES = "_amax", "_step", "_switches"
FACTOR = "_pre_quant_scale"


class RangeState(nn.Module):
    """A module with a range: none, a buffer, or the trained step of LSQ.

    The state of a model contains ``_amax`` or ``_step``, ``_pre_quant_scale`` if set, and
    ``_switches``: whether the quantizer is enabled, follows the data, and is calibrated. States
    without these entries also load, such as the state of the float model.
    """

    num_bits: Any
    unsigned: bool
    axis: int | tuple[int, ...] | None
    name: str
    range_policy: str
    pair_axis: int | None
    scale_amax: float | None
    _owner: tuple[Any] | None
    _amax: torch.Tensor | None
    _pre_quant_scale: torch.Tensor | None
    _step: Any

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(RANGE, None)
        self.register_buffer(FACTOR, None)
        self.register_parameter(STEP, None)
        self._disabled = False
        self._tracking = True
        self._is_set = False
        # In a tuple, so that nn.Module does not register the owner as a submodule.
        self._owner = None

    @property
    def _high(self) -> float:
        return greatest_value(self.num_bits, self.unsigned)

    @property
    def axes(self) -> tuple[int, ...] | None:
        """Per-channel axes as a tuple; None = one range."""
        return (self.axis,) if isinstance(self.axis, int) else self.axis

    @property
    def _learned(self) -> bool:
        return self.range_policy == "learned"

    @property
    def amax(self) -> Any:
        """Range: a float32 scalar, or per-channel values that broadcast against the tensor.

        None until it is set by calibration, training or assignment; until then the quantizer uses
        the range of each tensor, and reports the range of its weight if it has one. Assignment
        counts as calibration; None clears the range. An array assigned to a quantizer with one
        range also sets ``axis``: the axes with more than one value; for a flat array, the last
        axis.
        """
        if self._step is not None:
            return self._step.detach() * self._high
        if self._amax is None or self.range_policy == "current":
            weight = self._weight()
            return None if weight is None else self.range_of(weight).clamp(min=AMAX_FLOOR)
        return self._amax

    @amax.setter
    def amax(self, value: Any) -> None:
        if value is None:
            self._amax, self._is_set = None, False
            return
        if isinstance(value, torch.Tensor):
            value = value.detach().float().cpu().numpy()
        old = self.amax
        if self.axis is None and np.size(value) == 1:
            value = np.reshape(value, ())
        shape = None if old is None else tuple(old.shape)
        # Negative axes, since the rank of the tensor is unknown here.
        if self.axis is None and np.ndim(value) and not self._learned:
            sizes = np.shape(value)
            self.axis = tuple(i - len(sizes) for i, size in enumerate(sizes) if size > 1)
            shape = None
        elif self.axis is None:
            shape = ()
        array = torch.from_numpy(np.array(checked_range(self.name, value, shape), np.float32))
        self._set_range(array if old is None else array.to(old.device))
        self._is_set = True

    def _set_range(self, amax: torch.Tensor) -> None:
        """Store a range, at least ``AMAX_FLOOR``, in the buffer or the step."""
        if not self._learned:
            self._amax = amax
            return
        # Despite rounding, step * high must not fall below the floor.
        step = (amax / self._high).clamp(min=float(least_step(self._high)))
        if self._step is None:
            self._step = nn.Parameter(step)
        else:
            # In place: an optimizer may already refer to the parameter.
            with torch.no_grad():
                self._step.copy_(step)

    def set_granularity(self, axis: int | None, amax: torch.Tensor) -> None:
        """Set the per-channel axis and a fixed range.

        Args:
            axis: the axis; None for one range.
            amax: range that broadcasts against the tensor.
        """
        device = None if self.amax is None else self.amax.device
        if not self._learned:
            self.range_policy = "frozen"
        self.axis, self._amax = axis, None
        self._step = None
        self._set_range(
            amax.clamp(min=AMAX_FLOOR).to(device).reshape(() if axis is None else amax.shape)
        )
        self._is_set = True

    def bind_weight(self, owner: Any) -> None:
        """Set the module of the quantized weight, with a method ``quantized_weight``."""
        self._owner = (owner,)
        if self._learned and not self._is_set:
            self.fit_weight()

    def _weight(self) -> torch.Tensor | None:
        return None if self._owner is None else self._owner[0].quantized_weight(self)

    @property
    def weight(self) -> torch.Tensor | None:
        """The quantized weight; None for activations, or without a weight."""
        return self._weight()

    @property
    def of_weight(self) -> bool:
        """Whether this is a weight quantizer, with a range independent of data."""
        return self._owner is not None

    def fit_weight(self) -> None:
        """Set the range to the range of the weight, unless the policy ``"current"`` follows it."""
        weight = self._weight()
        if weight is not None and self.range_policy != "current":
            self._set_range(self.range_of(weight).clamp(min=AMAX_FLOOR))

    def magnitude(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 magnitudes; negatives count as 0 if unsigned."""
        x = x.detach().float()
        return x.relu() if self.unsigned else x.abs()

    def range_of(self, x: torch.Tensor) -> torch.Tensor:
        """Return the largest magnitude of ``x`` or of each channel; reduced axes have size 1.

        With a ``pair_axis``, sums of pairs replace the magnitudes.
        """
        magnitude = self.magnitude(x) if self.pair_axis is None else _pair_sums(x, self.pair_axis)
        if self.axes is None:
            amax = magnitude.amax()
        else:
            range_shape(x.shape, self.axes, self.name)
            axes = reduced_axes(x.dim(), self.axes)
            amax = magnitude.amax(axes, keepdim=True) if axes else magnitude
        return amax if self.scale_amax is None else amax * self.scale_amax

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        """Move the range with the model, but keep float32, since half precision would round it."""
        held = (self._amax, self._pre_quant_scale, self._step)
        kept = [None if x is None else x.detach().clone() for x in held]
        super()._apply(fn, recurse)
        moved: Any
        before: Any
        held = (self._amax, self._pre_quant_scale, self._step)
        for moved, before in zip(held, kept, strict=True):
            if moved is not None and moved.dtype != torch.float32:
                moved.data = before.to(moved.device)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        switches = [not self._disabled, self._tracking, self._is_set]
        destination[prefix + SWITCHES] = torch.tensor(switches, dtype=torch.uint8)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        _metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        _errors: list[str],
    ) -> None:
        """Load a range of any policy, even without a previous range."""
        amax, step = state_dict.get(prefix + RANGE), state_dict.get(prefix + STEP)
        switches = state_dict.get(prefix + SWITCHES)
        if amax is not None or step is not None:
            self._load_range(amax, step)
        elif switches is not None:
            self._amax = None
        # A float state has no ranges. The weight, a parameter of the parent, is loaded by now.
        elif self.of_weight:
            self._refit()
        elif self._is_set and strict:
            missing_keys.append(prefix + RANGE)
        if (factor := state_dict.get(prefix + FACTOR)) is not None:
            self._pre_quant_scale = factor.detach().float().clone()
        if switches is not None:
            enabled, self._tracking, self._is_set = map(bool, switches.tolist())
            self._disabled = not enabled
        if strict:
            known = {prefix + key for key in (RANGE, STEP, FACTOR, SWITCHES)}
            own = {key for key in state_dict if key.startswith(prefix)}
            unexpected_keys.extend(sorted(own - known))

    def _refit(self) -> None:
        """Fit an existing range to a weight loaded without a range."""
        if self._amax is not None or self._learned:
            self.fit_weight()

    def _load_range(self, amax: Any, step: Any) -> None:
        old = self.amax
        device = torch.device("cpu") if old is None else old.device
        if step is not None and self._step is not None and self._step.shape == step.shape:
            with torch.no_grad():
                self._step.copy_(step)  # exact, unlike a conversion to amax and back
        else:
            range_ = step.float() * self._high if amax is None else amax.float()
            self._set_range(range_.detach().clone().to(device))
        self._is_set = True


def _pair_sums(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the magnitudes of sums over neighbours of equal sign along ``axis``, in float32.

    The size of the axis is halved; a last element without a neighbour is kept.
    """
    x = x.detach().float()
    whole = (slice(None),) * axis
    even, second = x[(*whole, slice(0, None, 2))], x[(*whole, slice(1, None, 2))]
    odd = torch.zeros_like(even)
    odd.narrow(axis, 0, second.shape[axis]).copy_(second)
    return torch.maximum(even.relu() + odd.relu(), (-even).relu() + (-odd).relu())
