"""Kernels and batch norms of PyTorch modules, for the channel weights of calibration."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from qat_lib.calibrators.gains import Gains, GroupedWeights, Readings, reader_gains
from qat_lib.errors import UnsupportedModelError
from qat_lib.torch.graph import ModuleCall, ModuleGraph


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
