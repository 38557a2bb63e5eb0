"""correct_bias for PyTorch models; see ``qat_lib.lockstep.bias``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from qat_lib.errors import CalibrationError
from qat_lib.lockstep.bias import MEMORY, BiasCorrection, BiasReport, mean_shift
from qat_lib.torch.graph import ModuleCall, ModuleGraph
from qat_lib.torch.lockstep import read_samples, run_lockstep
from qat_lib.torch.naming import model_quantizers


def correct_bias(
    model: nn.Module,
    data: Any,
    *,
    samples: int = 64,
    batch_size: int = 32,
    on_layer: Callable[[int, int], None] | None = None,
) -> BiasReport:
    """Correct biases for the mean error of quantization.

    The method is that of ``qat_lib.correct_bias`` for Keras: layer by layer, the mean error of the
    outputs is subtracted from the bias of a quantized module, or from the running mean of the batch
    norm behind it. The correction is part of the model's state, so PyTorch, ONNX and engine agree.

    Args:
        model: a quantized and calibrated model; it is changed in place.
        data: calibration data in any form accepted by ``qat_lib.torch.calibrate``.
        samples: number of samples to measure, from the start of the data; fewer if their tensors
            would exceed 512 MiB. Default 64.
        batch_size: batch size for data given as arrays. Default 32.
        on_layer: called with the number of completed layers, and of all layers.

    Returns:
        The shift of each layer.

    Raises:
        CalibrationError: the model has no quantizer, the data are empty, or ``samples`` is
            below 1.
        UnsupportedModelError: torch.fx can't trace the model.
    """
    if not model_quantizers(model):
        raise CalibrationError(
            f"The model {type(model).__name__!r} has no quantizer: pass it through quantize_model "
            "and calibrate first."
        )
    graph = ModuleGraph(model)
    batches = read_samples(graph, data, samples, batch_size, memory=MEMORY)
    correction = BiasCorrection(graph, _ModuleBiases(), on_layer)
    correction.run(
        lambda visit, form: run_lockstep(graph, batches, visit, form=form),
        _values,
    )
    return correction.report(batches)


def _values(output: Any) -> np.ndarray:
    """Return the numbers of an output: a tensor, or a structure of tensors such as a namedtuple."""
    leaves = torch.utils._pytree.tree_leaves(output)
    return np.concatenate([leaf.detach().float().cpu().numpy().ravel() for leaf in leaves])


class _ModuleBiases:
    """Access to the biases of modules; see ``ChannelBiases``."""

    def problem(self, call: ModuleCall) -> str:
        """Return the reason that a weighted module can't be corrected; empty if it can."""
        is_known = isinstance(call.operation, (_ConvNd, nn.Linear))
        return "" if is_known else "the effect of its weights on its outputs is not known"

    def of_layer(self, call: ModuleCall) -> _ModuleBias | None:
        """Return the bias of a convolution or linear module, if any."""
        bias = call.operation._parameters.get("bias")  # not one that a parametrization computes
        if bias is None:
            return None
        return _ModuleBias(bias, -1 if isinstance(call.operation, nn.Linear) else 1)

    def of_normalization(self, call: ModuleCall) -> _ModuleMean | None:
        """Return the running mean of a batch norm, if any."""
        norm = call.operation
        is_known = isinstance(norm, _BatchNorm) and norm.running_mean is not None
        return _ModuleMean(norm) if is_known else None


class _ModuleBias:
    """A tensor added along one axis; see ``ChannelBias``."""

    def __init__(self, parameter: torch.Tensor, axis: int) -> None:
        self._parameter = parameter
        self._axis = axis

    def saved(self) -> Callable[[], None]:
        """Return a function that restores the current values."""
        values = self._parameter.detach().clone()

        def restore() -> None:
            with torch.no_grad():
                self._parameter.copy_(values)

        return restore

    def rows(self, tensor: torch.Tensor) -> np.ndarray:
        """Return a tensor as float32 ``(positions, channels)``."""
        # Channels last, so that a reshape keeps one column per channel.
        last = tensor.movedim(self._axis, -1)
        return np.asarray(last.reshape(-1, last.shape[-1]).float().cpu())

    def subtract(self, shift: np.ndarray) -> None:
        """Subtract the shift of each channel from the tensor."""
        self._parameter.sub_(torch.from_numpy(shift).to(self._parameter))

    def moved(self, tensor: torch.Tensor, shift: np.ndarray) -> torch.Tensor:
        """Return a tensor with each channel's shift subtracted."""
        moved = tensor.movedim(self._axis, -1) - torch.from_numpy(shift).to(tensor)
        return moved.movedim(-1, self._axis)


class _ModuleMean(_ModuleBias):
    """The running mean of a batch norm; see ``mean_shift``."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(norm.running_mean, 1)
        self._norm = norm

    def subtract(self, shift: np.ndarray) -> None:
        """Change the mean such that the outputs of the batch norm lose the shift."""
        norm = self._norm
        gamma = norm.weight.detach().float().cpu().numpy() if norm.affine else 1.0
        # A larger running mean lowers the outputs: the sign is opposite to a bias.
        super().subtract(
            -mean_shift(shift, gamma, norm.running_var.float().cpu().numpy(), norm.eps)
        )
