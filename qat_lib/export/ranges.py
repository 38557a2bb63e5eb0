"""The ranges that a quantized model has learned, as plain data."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from qat_lib.errors import ExportError

INT8_MAX = np.float32(127.0)
UINT8_MAX = np.float32(255.0)

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class LearnedRange:
    """The range of one quantizer.

    Attributes:
        name: name of the quantizer.
        amax: float32; a scalar, or one value a channel in a shape that broadcasts against the
            tensor.
        narrow: whether the integer -128 is left out (weights).
        unsigned: whether the integers are unsigned, 0 to 255.
    """

    name: str
    amax: np.ndarray
    narrow: bool = False
    unsigned: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the integers: int8, or uint8 where ``unsigned``."""
        return np.dtype(np.uint8 if self.unsigned else np.int8)

    @property
    def scale(self) -> np.ndarray:
        """Return the float32 scale: ``amax / 127``, unsigned ``amax / 255``."""
        steps = UINT8_MAX if self.unsigned else INT8_MAX
        return np.asarray(np.asarray(self.amax, np.float32) / steps, np.float32)

    def integers(self, x: np.ndarray) -> np.ndarray:
        """Return the integers of ``x``: ``clip(round_half_even(x / scale))`` in float32."""
        limits = np.iinfo(self.dtype)
        q = np.divide(x, self.scale, dtype=np.float32)
        np.rint(q, out=q)
        np.clip(q, limits.min + int(self.narrow), limits.max, out=q)
        return np.asarray(q.astype(self.dtype))


class RangeOwner(Protocol):
    """What is read of a quantizer of any framework."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def enabled(self) -> bool:
        """Whether it quantizes."""

    @property
    def num_bits(self) -> int:
        """Width of its integers."""

    @property
    def amax(self) -> np.ndarray:
        """Its range, as in ``LearnedRange``."""

    @property
    def narrow_range(self) -> bool:
        """Whether the least integer is left out."""

    @property
    def unsigned(self) -> bool:
        """Whether its integers are unsigned."""

    @property
    def calibrated(self) -> bool:
        """Whether calibration or training has set its range."""


def learned_ranges(quantizers: Iterable[RangeOwner]) -> dict[str, LearnedRange]:
    """Return the range of each enabled quantizer by its name.

    Ranges that neither calibration nor training has set are named in a warning: they are made up.

    Args:
        quantizers: the quantizers of a model; one may come several times.

    Raises:
        ExportError: a quantizer is not 8 bits wide, or two quantizers have one name.
    """
    found: dict[str, tuple[RangeOwner, LearnedRange]] = {}
    for owner in quantizers:
        if not owner.enabled:
            continue
        if owner.num_bits != 8:
            raise ExportError(
                f"Expected quantizers of 8 bits. Received: {owner.name!r} with {owner.num_bits}. "
                "ONNX QuantizeLinear has 8-bit integers: quantize with num_bits=8, or disable this "
                "quantizer."
            )
        if owner.name in found and found[owner.name][0] is not owner:
            raise ExportError(
                f"Expected one quantizer a name. Received two named {owner.name!r}. Rename one of "
                "them."
            )
        range_ = LearnedRange(
            name=owner.name, amax=owner.amax, narrow=owner.narrow_range, unsigned=owner.unsigned
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


def disabled_quantizers(quantizers: Iterable[RangeOwner]) -> list[str]:
    """Return the names of the quantizers that are switched off."""
    return sorted({owner.name for owner in quantizers if not owner.enabled})
