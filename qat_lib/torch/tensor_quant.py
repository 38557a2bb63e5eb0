"""QuantDescriptor and the quantization functions, with the names of pytorch-quantization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import torch
import yaml

from qat_lib.core.layer_config import CALIBRATORS
from qat_lib.core.ranges import AMAX_FLOOR, check_settings, integer_bounds
from qat_lib.errors import SpecError
from qat_lib.torch.fake_quantization import (
    FP8,
    FP8_HIGH,
    fake_quantize,
    fake_quantize_fp8,
    inside_range,
    quantized_integers,
)

CALIB_METHODS = ("max", "histogram")
_Plain: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class QuantDescriptor:
    """Quantization settings of a tensor.

    Args:
        num_bits: width of the integers, 2 to 16, or ``(4, 3)`` for FP8 (E4M3) with the largest value
            448 at ``amax``. Default 8.
        name: name of the quantizer. Default None: its path in the model.
        fake_quant: whether to dequantize again. Default True; False returns integers as floats.
        axis: per-channel axes, an integer or a tuple. Default None: one range.
        amax: range, a number or array. Default None: the range of each tensor until calibration,
            training or assignment sets one.
        learn_amax: whether the range is trained (policy ``"learned"``). Default False.
        scale_amax: factor on measured ranges and on ``amax``. Default None.
        calib_method: calibrator for ``enable_calib``, ``"max"`` (default) or ``"histogram"``.
        unsigned: whether the integers are unsigned, 0 to 255. Default False.
        narrow_range: whether to exclude the least integer (-128). Default False; always true for
            the weights of quantized modules.
        range_policy: update of the range in training: ``"frozen"`` (default), ``"ema"``,
            ``"last"``, ``"learned"``, or ``"current"``, the range of each tensor.
        momentum: weight of the old range in ``"ema"``, in [0, 1). Default 0.95.
        calibrator: calibration method of this tensor. Default None: the argument of ``calibrate``.
        pair_axis: axis of a weight with 16-bit sums of neighbours; see
            ``qat_lib.TensorQuantizer``. Default None.

    Raises:
        SpecError: a value is out of range.
        TypeError: an argument is unknown or has the wrong type.

    Examples:
        >>> QuantDescriptor(num_bits=4, axis=0).to_yaml()
        'axis: [0]\\nnum_bits: 4\\n'
    """

    num_bits: Any = 8
    name: str | None = None
    _: KW_ONLY
    fake_quant: bool = True
    axis: int | tuple[int, ...] | None = None
    amax: Any = None
    learn_amax: bool = False
    scale_amax: float | None = None
    calib_method: str = "max"
    unsigned: bool = False
    narrow_range: bool = False
    range_policy: str | None = None
    momentum: float = 0.95
    calibrator: str | None = None
    pair_axis: int | None = None

    def __post_init__(self) -> None:
        """Normalize the values, derive dependent ones, and check all."""
        if not isinstance(self.name, str | None):
            raise TypeError(f"name must be a string or None. Received: {self.name!r}.")
        # JSON has no tuples.
        if isinstance(self.num_bits, list):
            object.__setattr__(self, "num_bits", tuple(self.num_bits))
        if isinstance(self.num_bits, tuple) and self.num_bits != FP8:
            raise TypeError(f"num_bits must be an integer or (4, 3). Received: {self.num_bits!r}.")
        if isinstance(self.axis, list):
            object.__setattr__(self, "axis", tuple(self.axis))
        if not all(isinstance(axis, int) for axis in self.axes or ()):
            raise TypeError(f"axis must be an integer or a tuple of them. Received: {self.axis!r}.")
        if isinstance(self.amax, str | bytes):
            raise TypeError(f"amax must be float, list or ndarray. Received: {self.amax!r}.")
        if self.amax is not None:
            object.__setattr__(self, "amax", np.array(self.amax, np.float32))
        if self.range_policy is None:
            policy = "learned" if self.learn_amax else "frozen"
            object.__setattr__(self, "range_policy", policy)
        elif self.range_policy == "learned":
            object.__setattr__(self, "learn_amax", True)
        self._check()

    def _check(self) -> None:
        policy = str(self.range_policy)
        if self.num_bits == FP8 and (self.unsigned or not self.fake_quant or policy == "learned"):
            raise SpecError(
                "FP8 is signed, fake-quantized, and its range is not trained. Received: "
                f"unsigned={self.unsigned}, fake_quant={self.fake_quant}, range_policy={policy!r}."
            )
        width = 8 if self.num_bits == FP8 else self.num_bits
        check_settings(width, self.narrow_range, self.unsigned, policy, self.momentum)
        if self.learn_amax and policy != "learned":
            raise SpecError(
                f"learn_amax=True means the range policy 'learned'. Received: {policy!r}."
            )
        if self.calib_method not in CALIB_METHODS:
            raise SpecError(
                f"calib_method must be one of {', '.join(CALIB_METHODS)}. Received: "
                f"{self.calib_method!r}."
            )
        if self.calibrator not in (None, *CALIBRATORS):
            raise SpecError(
                f"calibrator must be one of {', '.join(CALIBRATORS)} or None. Received: "
                f"{self.calibrator!r}."
            )

    @property
    def axes(self) -> tuple[int, ...] | None:
        """Per-channel axes as a tuple; None = one range."""
        return self.axis if self.axis is None or isinstance(self.axis, tuple) else (self.axis,)

    def dict(self) -> _Plain:
        """Return the settings that differ from the defaults, as plain data."""
        default = QuantDescriptor()
        found: _Plain = {"num_bits": self.num_bits}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "amax" and value is not None:
                found["amax"] = value.tolist()
            elif value is not None and value != getattr(default, field.name):
                found[field.name] = value
        return found

    def to_yaml(self) -> str:
        """Return the descriptor as YAML."""
        plain = self.dict()
        if self.axes is not None:
            plain["axis"] = list(self.axes)
        if self.num_bits == FP8:
            plain["num_bits"] = list(FP8)
        return yaml.safe_dump(plain, width=120, default_flow_style=None)

    @classmethod
    def from_yaml(cls, yaml_str: str) -> QuantDescriptor:
        """Return the descriptor of a text from ``to_yaml``."""
        return cls(**yaml.safe_load(yaml_str))

    def __eq__(self, other: object) -> bool:
        """Return whether both describe the same quantization."""
        if not isinstance(other, QuantDescriptor):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        """Return a hash of the settings."""
        return hash(repr(self._key()))

    def _key(self) -> _Plain:
        return {**self.dict(), "axis": self.axes}


QUANT_DESC_8BIT_PER_TENSOR = QuantDescriptor()
QUANT_DESC_UNSIGNED_8BIT_PER_TENSOR = QuantDescriptor(unsigned=True)

_PER_OUTPUT_ROW = QuantDescriptor(axis=0, narrow_range=True)
QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL = _PER_OUTPUT_ROW
QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL = _PER_OUTPUT_ROW
QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL = _PER_OUTPUT_ROW
QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW = _PER_OUTPUT_ROW

# The weight of a transposed convolution is (in, out, ...), and TensorRT requires scales along the
# output channels. pytorch-quantization uses axis 0, which TensorRT rejects.
_PER_OUTPUT_COLUMN = QuantDescriptor(axis=1, narrow_range=True)
QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL = _PER_OUTPUT_COLUMN
QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL = _PER_OUTPUT_COLUMN
QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL = _PER_OUTPUT_COLUMN


def fake_tensor_quant(
    inputs: torch.Tensor,
    amax: torch.Tensor | float,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> torch.Tensor:
    """Quantize a tensor and dequantize it again.

    Args:
        inputs: float tensor of any shape.
        amax: range, a number or a tensor that broadcasts against ``inputs``.
        num_bits: width of the integers, 2 to 16. Default 8.
        unsigned: whether the integers are unsigned, with negative values set to zero. Default
            False.
        narrow_range: whether signed integers exclude the least one (-128). Default True.

    Returns:
        A tensor with the shape and data type of ``inputs``. The gradient is the straight-through
        estimator with a clip mask: 1 inside of the range, else 0.
    """
    narrow = narrow_range and not unsigned
    return fake_quantize(inputs, amax, num_bits=num_bits, narrow_range=narrow, unsigned=unsigned)


def tensor_quant(
    inputs: torch.Tensor,
    amax: torch.Tensor | float,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a tensor to integers, kept as floats.

    Args:
        inputs: float tensor of any shape.
        amax: range, a number or a tensor that broadcasts against ``inputs``.
        num_bits: width of the integers, 2 to 16. Default 8.
        unsigned: whether the integers are unsigned, with negative values set to zero. Default
            False.
        narrow_range: whether signed integers exclude the least one (-128). Default True.

    Returns:
        The integers, with the shape and data type of ``inputs``, and the inverse of the scale,
        ``127 / amax``: divide the integers by it to dequantize. The gradient of the integers equals
        that of ``fake_tensor_quant``.

    Raises:
        SpecError: ``inputs`` are float16 and can't represent the inverse scale.
    """
    low, high = integer_bounds(num_bits, narrow_range, unsigned)
    range_ = torch.as_tensor(amax, dtype=torch.float32, device=inputs.device).detach()
    range_ = range_.clamp(min=AMAX_FLOOR)
    integers: torch.Tensor = _MaskedIntegers.apply(inputs.float(), range_, low, high)
    scale = high / range_
    if inputs.dtype == torch.float16 and bool((scale > torch.finfo(torch.float16).max).any()):
        raise SpecError(
            "The scale is too large for FP16: expected a range of at least "
            f"{high / torch.finfo(torch.float16).max:.4g}. Received: {amax!r}."
        )
    return integers.to(inputs.dtype), scale.to(inputs.dtype)


legacy_fake_tensor_quant = fake_tensor_quant
"""pytorch-quantization's name of the variant without a CUDA extension, the only variant here."""


def fake_affine_tensor_quant(
    inputs: torch.Tensor,
    min_range: torch.Tensor | float,
    max_range: torch.Tensor | float,
    num_bits: int = 8,
) -> torch.Tensor:
    """Quantize a tensor with a zero point, and dequantize it again.

    The function serves experiments: quantized modules and exported files have no zero points.

    Args:
        inputs: float tensor of any shape.
        min_range: value of the least integer, a number or scalar tensor.
        max_range: value of the greatest integer, above ``min_range``.
        num_bits: width of the integers, 2 to 16. Default 8.

    Returns:
        A tensor with the shape and data type of ``inputs``: multiples of
        ``(max_range - min_range) / (2**num_bits - 1)``, with an exact zero. The gradient is 1 from
        ``min_range`` to ``max_range``, else 0.

    Raises:
        SpecError: the range is empty or not finite, or ``num_bits`` is out of range.
    """
    low, high = (torch.as_tensor(x).detach().to(inputs).float() for x in (min_range, max_range))
    if not bool(torch.isfinite(high - low).all() and (high > low).all()):
        raise SpecError(
            "Expected finite bounds with min_range below max_range. Received: "
            f"{min_range!r}, {max_range!r}."
        )
    check_settings(num_bits, narrow_range=False, unsigned=False, range_policy="frozen", momentum=0)
    step = (high - low) / (2.0**num_bits - 1.0)
    first = torch.round(low / step)
    x = inputs.float()
    quantized = (torch.round(x / step).clamp(first, first + 2.0**num_bits - 1.0) * step).detach()
    # Straight-through estimator: the value of quantized, the gradient of passed.
    passed = torch.where((x >= low) & (x <= high), x, x.detach())
    return (quantized + passed - passed.detach()).to(inputs.dtype)


def scaled_e4m3(
    inputs: torch.Tensor,
    amax: torch.Tensor | float | None = None,
    E: int = 4,  # noqa: N803 - pytorch-quantization's names
    M: int = 3,  # noqa: N803
) -> torch.Tensor:
    """Round a tensor to FP8 (E4M3) values and back.

    Args:
        inputs: float tensor of any shape.
        amax: range, mapped to FP8's largest value 448: a number, or a tensor that broadcasts
            against ``inputs``. Default None: 448, without scaling.
        E: bits of the exponent; must be 4.
        M: bits of the mantissa; must be 3.

    Returns:
        A tensor with the shape and data type of ``inputs``; magnitudes above ``amax`` saturate. The
        gradient is 1 within ``amax``, else 0.

    Raises:
        NotImplementedError: ``E`` and ``M`` are not 4 and 3.
    """
    if (E, M) != FP8:
        raise NotImplementedError(f"FP8 is E4M3: expected E=4, M=3. Received: E={E}, M={M}.")
    return fake_quantize_fp8(inputs, FP8_HIGH if amax is None else amax)


class _MaskedIntegers(torch.autograd.Function):
    """Integers of a tensor, with the straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, amax: Any, low: float, high: float) -> Any:
        ctx.save_for_backward(inside_range(x, amax, low / high))
        return quantized_integers(x, amax, low, high)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        (inside,) = ctx.saved_tensors
        return torch.where(inside, dy, 0.0), None, None, None
