"""The ranges that a quantized Keras model has learned, as plain data."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from qat_lib.errors import ExportError

INT8_MAX = np.float32(127.0)

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class LearnedRange:
    """The range of one quantizer.

    Attributes:
        name: name of the quantizer.
        amax: float32; a scalar, or one value a channel in a shape that broadcasts against the tensor.
        narrow: whether the integer -128 is left out (weights).
    """

    name: str
    amax: np.ndarray
    narrow: bool = False

    @property
    def scale(self) -> np.ndarray:
        """Step of the integers: ``amax / 127`` in float32, in the shape of ``amax``."""
        return np.asarray(np.asarray(self.amax, np.float32) / INT8_MAX, np.float32)

    def integers(self, x: np.ndarray) -> np.ndarray:
        """Return the int8 values of ``x``: ``clip(round_half_even(x / scale))`` in float32, as ONNX and Keras do."""
        low = -INT8_MAX if self.narrow else -INT8_MAX - 1
        q = np.divide(x, self.scale, dtype=np.float32)
        np.rint(q, out=q)
        np.clip(q, low, INT8_MAX, out=q)
        return np.asarray(q.astype(np.int8))


def learned_ranges(model: Any) -> dict[str, LearnedRange]:
    """Return the range of each enabled quantizer of a Keras model, by the quantizer's name.

    Ranges that neither calibration nor training has set are named in a warning: they are made up.

    Raises:
        ExportError: a quantizer is not 8 bits wide, or two quantizers have one name.
    """
    from qat_lib.quantizers import TensorQuantizer

    found: dict[str, tuple[Any, LearnedRange]] = {}
    for layer in model._flatten_layers():
        if not isinstance(layer, TensorQuantizer) or not layer.built or not layer.enabled:
            continue
        if layer.num_bits != 8:
            raise ExportError(
                f"Expected quantizers of 8 bits. Received: {layer.name!r} with {layer.num_bits}. "
                "ONNX QuantizeLinear has 8-bit integers: quantize with num_bits=8, or disable this quantizer."
            )
        if layer.name in found and found[layer.name][0] is not layer:
            raise ExportError(f"Expected one quantizer a name. Received two named {layer.name!r}. Rename one of them.")
        found[layer.name] = (layer, LearnedRange(name=layer.name, amax=layer.amax, narrow=layer.narrow_range))
    if made_up := [name for name, (layer, _) in found.items() if not layer.calibrated]:
        logger.warning(
            "%d of %d quantizers were never calibrated or trained, such as %s: their ranges are the initial ones. "
            "Call qat_lib.calibrate(model, data) before the export.",
            *(len(made_up), len(found), made_up[0]),
        )
    return {name: range_ for name, (_, range_) in found.items()}


def disabled_quantizers(model: Any) -> list[str]:
    """Return the names of the quantizers of a Keras model that are switched off."""
    from qat_lib.quantizers import TensorQuantizer

    layers = [x for x in model._flatten_layers() if isinstance(x, TensorQuantizer)]
    return sorted({x.name for x in layers if x.built and not x.enabled})
