"""calibrate: set the ranges of a PyTorch model from data, with quantization off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from qat_lib.calibrators.batches import BatchReader
from qat_lib.calibrators.calibration import Calibration, CalibrationReport, Histograms, SeenTensor
from qat_lib.calibrators.gains import Gains, GroupedWeights, Readings, reader_gains
from qat_lib.calibrators.methods import chosen_method
from qat_lib.errors import CalibrationError, UnsupportedModelError
from qat_lib.torch.graph import ModuleCall, ModuleGraph
from qat_lib.torch.histogram import Histogram
from qat_lib.torch.inference import in_inference
from qat_lib.torch.naming import model_quantizers, named_by_path
from qat_lib.torch.shapes import required_arguments
from qat_lib.torch.tensor_quantizer import TensorQuantizer


def calibrate(
    model: nn.Module,
    data: Any,
    method: str | None = None,
    *,
    percentile: float | None = None,
    batch_size: int = 32,
    freeze: bool = True,
    on_batch: Callable[[int], None] | None = None,
) -> CalibrationReport:
    """Set activation ranges from data and weight ranges from weights.

    The model runs in inference mode, without gradients, on the device of its parameters; each
    quantizer records its float tensor and passes it on. The counts, and so the ranges, equal those
    of ``qat_lib.calibrate`` on the same tensors.

    Args:
        model: a model with quantizers; its ranges are set in place.
        data: batches of inputs (an iterable, a DataLoader), each an array or tensor, a list or
            dict of them for several inputs, or a tuple with one of these as its first item; or all
            samples at once, as one array ``(samples, ...)`` or a list or dict of them, split into
            batches of ``batch_size``.
        method: ``"max"``, ``"percentile"``, ``"entropy"``, ``"mse"`` or ``"auto"``, the range with
            the least squared error in the outputs of the tensor's readers. Default: ``"auto"``, or
            ``"percentile"`` if a percentile is given. The calibrator of a quantizer takes
            precedence.
        percentile: for ``"percentile"``, in (0, 100]. Default 99.99.
        batch_size: batch size for data given as arrays.
        freeze: whether ranges are fixed during training. Default True, as recommended in NVIDIA's
            QAT guide.
        on_batch: called with the number of completed batches.

    Returns:
        Statistics of each tensor.

    Raises:
        CalibrationError: the model has no quantizer, the data is empty, or values are not finite.
    """
    method, percentile = chosen_method(method, percentile)
    quantizers = model_quantizers(model)
    if not quantizers:
        raise CalibrationError(
            f"The model {type(model).__name__!r} has no quantizer: pass it through quantize_model "
            "first, or build it within quant_modules.quantized_modules()."
        )
    inputs = len(required_arguments(model))
    reader = BatchReader(inputs=inputs, is_array=_is_array, convert=as_tensor)
    calibration = Calibration(
        quantizers=quantizers, method=method, percentile=percentile, freeze=freeze
    )
    with named_by_path(model), in_inference(model), torch.no_grad():
        gains = module_gains(model) if calibration.needs_gains else None
        return calibration.run(
            _Histograms(gains),
            reader.batches(data, batch_size),
            lambda batch: _call(model, batch),
            on_batch,
        )


class _Histograms(Histograms):
    """Histograms of PyTorch tensors."""

    histogram = Histogram

    def as_array(self, tensor: torch.Tensor) -> np.ndarray | None:
        """Return a CPU tensor as an array that shares its memory; None for other devices."""
        return tensor.detach().float().numpy() if tensor.device.type == "cpu" else None

    def channel_axis(self, rank: int) -> int:
        """Return the channel axis: the second of feature maps, else the last."""
        return 1 if rank > 3 else rank - 1

    def measure(self, quantizer: TensorQuantizer, tensor: torch.Tensor) -> SeenTensor:
        """Return the magnitudes of a tensor on a GPU."""
        magnitude = quantizer.magnitude(tensor)
        return SeenTensor(
            magnitude=magnitude,
            largest=float(magnitude.amax()),
            negative=bool((tensor < 0).any()),
        )


def as_tensor(data: Any) -> torch.Tensor:
    """Return a tensor as it is, or a copy of an array: arrays may be read-only."""
    return data if isinstance(data, torch.Tensor) else torch.from_numpy(np.array(data))


def _call(model: nn.Module, batch: Any) -> None:
    parameter = next(model.parameters(), None)
    device = None if parameter is None else parameter.device
    if isinstance(batch, Mapping):
        model(**{name: torch.as_tensor(part, device=device) for name, part in batch.items()})
    elif isinstance(batch, (tuple, list)):
        model(*(torch.as_tensor(part, device=device) for part in batch))
    else:
        model(torch.as_tensor(batch, device=device))


def _is_array(data: Any) -> bool:
    return isinstance(data, (np.ndarray, torch.Tensor))


def module_gains(model: nn.Module) -> Gains:
    """Return the gains of a quantized module; empty if torch.fx can't trace it."""
    try:
        graph = ModuleGraph(model)
    except UnsupportedModelError:
        return {}
    return reader_gains(graph, Readings(kernel=_kernel, factors=_factors))


def _kernel(call: ModuleCall) -> GroupedWeights | None:
    module = call.operation
    if not isinstance(module, nn.Linear | nn.Conv2d | nn.Conv3d) or len(call.inputs) != 1:
        return None
    weights = _array(module.weight)
    groups = getattr(module, "groups", 1)
    # (out, in per group, positions of the window)
    return GroupedWeights(weights=weights.reshape(*weights.shape[:2], -1), groups=groups)


def _factors(call: ModuleCall) -> np.ndarray | None:
    norm = call.operation
    if not isinstance(norm, _BatchNorm) or norm.running_var is None:
        return None
    scale = 1.0 if norm.weight is None else _array(norm.weight)
    return np.asarray(scale / np.sqrt(_array(norm.running_var) + norm.eps))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().float().cpu())
