"""The ranges that a quantized Keras model has learned, as plain data."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from qat_lib.errors import ExportError
from qat_lib.graph.keras_graph import layers_of

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
        """Step of the integers in float32: ``amax / 127``, unsigned ``amax / 255``."""
        steps = UINT8_MAX if self.unsigned else INT8_MAX
        return np.asarray(np.asarray(self.amax, np.float32) / steps, np.float32)

    def integers(self, x: np.ndarray) -> np.ndarray:
        """Return the integers of ``x``: ``clip(round_half_even(x / scale))`` in float32."""
        limits = np.iinfo(self.dtype)
        q = np.divide(x, self.scale, dtype=np.float32)
        np.rint(q, out=q)
        np.clip(q, limits.min + int(self.narrow), limits.max, out=q)
        return np.asarray(q.astype(self.dtype))


def learned_ranges(model: Any) -> dict[str, LearnedRange]:
    """Return the range of each enabled quantizer of a Keras model, by the quantizer's name.

    Ranges that neither calibration nor training has set are named in a warning: they are made up.

    Raises:
        ExportError: a quantizer is not 8 bits wide, or two quantizers have one name.
    """
    from qat_lib.quantizers import TensorQuantizer

    found: dict[str, tuple[Any, LearnedRange]] = {}
    for layer in layers_of(model):
        if not isinstance(layer, TensorQuantizer) or not layer.built or not layer.enabled:
            continue
        if layer.num_bits != 8:
            raise ExportError(
                f"Expected quantizers of 8 bits. Received: {layer.name!r} with {layer.num_bits}. "
                "ONNX QuantizeLinear has 8-bit integers: quantize with num_bits=8, or disable this "
                "quantizer."
            )
        if layer.name in found and found[layer.name][0] is not layer:
            raise ExportError(
                f"Expected one quantizer a name. Received two named {layer.name!r}. Rename one of "
                "them."
            )
        range_ = LearnedRange(
            name=layer.name, amax=layer.amax, narrow=layer.narrow_range, unsigned=layer.unsigned
        )
        found[layer.name] = (layer, range_)
    if made_up := [name for name, (layer, _) in found.items() if not layer.calibrated]:
        logger.warning(
            "%d of %d quantizers were never calibrated or trained, such as %s: their ranges are "
            "the initial ones. "
            "Call qat_lib.calibrate(model, data) before the export.",
            *(len(made_up), len(found), made_up[0]),
        )
    return {name: range_ for name, (_, range_) in found.items()}


def disabled_quantizers(model: Any) -> list[str]:
    """Return the names of the quantizers of a Keras model that are switched off."""
    from qat_lib.quantizers import TensorQuantizer

    layers = [x for x in layers_of(model) if isinstance(x, TensorQuantizer)]
    return sorted({x.name for x in layers if x.built and not x.enabled})
