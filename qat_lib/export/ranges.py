"""Learned ranges of a quantized model, as plain data."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qat_lib.core.ranges import greatest_integer, integer_bounds
from qat_lib.errors import ExportError

MOST_BITS = 8
"""Greatest width of the integers in a file."""

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class LearnedRange:
    """Range of one quantizer.

    Attributes:
        name: name of the quantizer.
        amax: float32; a scalar, or one value per channel in a shape that broadcasts against the
            tensor.
        narrow: whether the least integer, -128, is excluded (weights).
        unsigned: whether the integers are unsigned, 0 to 255.
        num_bits: width of the integers, 2 to 8; narrower integers are stored in 8 bits. Default 8.
    """

    name: str
    amax: np.ndarray
    narrow: bool = False
    unsigned: bool = False
    num_bits: int = MOST_BITS

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the integers: int8, or uint8 if ``unsigned``."""
        return np.dtype(np.uint8 if self.unsigned else np.int8)

    @property
    def scale(self) -> np.ndarray:
        """Return the float32 scale: ``amax`` over the greatest integer, 127 or unsigned 255."""
        steps = np.float32(greatest_integer(self.num_bits, self.unsigned))
        return np.asarray(np.asarray(self.amax, np.float32) / steps, np.float32)

    def integers(self, x: np.ndarray) -> np.ndarray:
        """Return the integers of ``x``: ``clip(round_half_even(x / scale))`` in float32."""
        low, high = integer_bounds(self.num_bits, self.narrow, self.unsigned)
        # In float32 and in place, like the quantizers in training: the integers must be equal bit
        # for bit.
        q = np.divide(x, self.scale, dtype=np.float32)
        np.rint(q, out=q)
        np.clip(q, low, high, out=q)
        return np.asarray(q.astype(self.dtype))


class RangeOwner(Protocol):
    """Properties of a quantizer of any framework."""

    @property
    def name(self) -> str:
        """Name of the quantizer."""

    @property
    def enabled(self) -> bool:
        """Whether the quantizer is enabled."""

    @property
    def num_bits(self) -> int:
        """Width of the integers."""

    @property
    def amax(self) -> np.ndarray:
        """Range, as in ``LearnedRange``."""

    @property
    def narrow_range(self) -> bool:
        """Whether the least integer is excluded."""

    @property
    def unsigned(self) -> bool:
        """Whether the integers are unsigned."""

    @property
    def pair_axis(self) -> int | None:
        """Axis along which the range covers sums of two, for CPUs without VNNI."""

    @property
    def calibrated(self) -> bool:
        """Whether calibration or training has set the range."""


def learned_ranges(quantizers: Iterable[RangeOwner]) -> dict[str, LearnedRange]:
    """Return the range of each enabled quantizer, by name.

    A warning lists quantizers with initial ranges, set by neither calibration nor training.

    Args:
        quantizers: the quantizers of a model; duplicates are allowed.

    Raises:
        ExportError: a quantizer is wider than 8 bits, or two quantizers have the same name.
    """
    found: dict[str, tuple[RangeOwner, LearnedRange]] = {}
    for owner in quantizers:
        if not owner.enabled:
            continue
        if owner.num_bits > MOST_BITS:
            raise _unknown_width(owner.name, owner.num_bits, "8 bits or fewer")
        if owner.name in found and found[owner.name][0] is not owner:
            raise ExportError(
                f"Expected one quantizer a name. Received two named {owner.name!r}. Rename one of "
                "them."
            )
        range_ = LearnedRange(
            name=owner.name,
            amax=owner.amax,
            narrow=owner.narrow_range,
            unsigned=owner.unsigned,
            num_bits=owner.num_bits,
        )
        found[owner.name] = (owner, range_)
    if made_up := [name for name, (owner, _) in found.items() if not owner.calibrated]:
        logger.warning(
            "%d of %d quantizers were never calibrated or trained, such as %s: their ranges are "
            "the initial ones. "
            "Call qat_lib.calibrate(model, data) before the export.",
            *(len(made_up), len(found), made_up[0]),
        )
    return {name: range_ for name, (_, range_) in found.items()}


def check_activation_bits(range_: LearnedRange) -> None:
    """Check the width of an activation's integers, 8 bits.

    Raises:
        ExportError: the width differs; QuantizeLinear would saturate at other values.
    """
    if range_.num_bits != MOST_BITS:
        raise _unknown_width(range_.name, range_.num_bits, "8 bits for activations")


def _unknown_width(name: str, num_bits: int, expected: str) -> ExportError:
    return ExportError(
        f"Expected quantizers of {expected}. Received: {name!r} with {num_bits}. ONNX "
        "QuantizeLinear has 8-bit integers: quantize with num_bits=8, or disable this quantizer."
    )


def disabled_quantizers(quantizers: Iterable[RangeOwner]) -> list[str]:
    """Return the sorted names of the disabled quantizers."""
    return sorted({owner.name for owner in quantizers if not owner.enabled})
