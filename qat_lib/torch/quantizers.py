"""Read the quantizers of a module for the export: names and ranges as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from qat_lib.calibrators.collecting import collecting
from qat_lib.core.ranges import AMAX_FLOOR, range_shape
from qat_lib.errors import ExportError
from qat_lib.export.ranges import RangeOwner
from qat_lib.torch.capture import Example
from qat_lib.torch.fake_quantization import FP8
from qat_lib.torch.inference import in_inference
from qat_lib.torch.naming import quantizers_of
from qat_lib.torch.tensor_quantizer import TensorQuantizer


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadQuantizer:
    """Settings and range of a quantizer; see ``qat_lib.export.ranges.RangeOwner``."""

    name: str
    enabled: bool
    num_bits: int
    amax: np.ndarray
    narrow_range: bool
    unsigned: bool
    calibrated: bool
    pair_axis: int | None


def read_quantizers(module: nn.Module, example: Example) -> list[RangeOwner]:
    """Return the settings and range of each quantizer.

    Args:
        module: a module with named quantizers.
        example: arguments for a run of the module, if a range depends on the current weight.

    Raises:
        ExportError: an activation has no range.
    """
    quantizers = list(quantizers_of(module).values())
    now = _Now()
    # The run of the module may be slow, so it is skipped if all ranges are complete.
    if any(q.enabled and not _has_range(q) for q in quantizers):
        with in_inference(module), collecting(now), torch.no_grad():
            module(*example.args, **example.kwargs)
    read: list[RangeOwner] = []
    for quantizer in quantizers:
        if quantizer.enabled and quantizer.num_bits == FP8:
            raise ExportError(
                f"Expected quantizers with integers. Received: {quantizer.name!r} with FP8. Engines of "
                "the backends here are INT8. For an FP8 file call torch.onnx.export(..., "
                "opset_version=19) within qat_lib.torch.enable_onnx_export()."
            )
        amax = quantizer.amax if _has_range(quantizer) else now.ranges.get(quantizer)
        if amax is None and quantizer.enabled and quantizer in now.seen:
            raise ExportError(
                f"Expected a range for the quantizer {quantizer.name!r}. It has none: its tensor's "
                "own maximum counts at each call, which no engine does. "
                "Call qat_lib.torch.calibrate(module, data) before the export."
            )
        read.append(
            ReadQuantizer(
                name=quantizer.name,
                # An unused quantizer has no pair in the graph.
                enabled=quantizer.enabled and amax is not None,
                num_bits=quantizer.num_bits,
                amax=np.zeros(()) if amax is None else amax.detach().cpu().numpy(),
                narrow_range=quantizer.narrow_range,
                pair_axis=quantizer.pair_axis,
                unsigned=quantizer.unsigned,
                calibrated=quantizer.calibrated or amax is None,
            )
        )
    return read


def _has_range(quantizer: TensorQuantizer) -> bool:
    """Return whether the range of a quantizer is complete without its tensor."""
    amax = quantizer.amax
    if amax is None or quantizer.range_policy == "current":
        return False
    # A flat list of channel ranges gets its shape from the tensor at the first call.
    return quantizer.axis is None or amax.dim() != 1


class _Now:
    """Recorder of ranges that depend on the tensor of a quantizer."""

    def __init__(self) -> None:
        self.ranges: dict[Any, torch.Tensor] = {}
        self.seen: set[Any] = set()

    def observe(self, quantizer: Any, tensor: torch.Tensor) -> None:
        """Record the range for ``tensor``, a current weight or a range given as a list."""
        self.seen.add(quantizer)
        amax = quantizer.amax
        # A stored range may have lost its axes of size 1; the exported scale needs them.
        if amax is not None and quantizer.range_policy != "current":
            shape = (
                ()
                if quantizer.axes is None
                else range_shape(tensor.shape, quantizer.axes, quantizer.name)
            )
            self.ranges[quantizer] = amax.reshape(shape)
        elif quantizer.of_weight or isinstance(tensor, nn.Parameter):
            self.ranges[quantizer] = quantizer.range_of(tensor).clamp(min=AMAX_FLOOR)
