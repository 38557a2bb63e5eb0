"""Weights of PyTorch modules from ``.npz`` files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from qat_lib.errors import ConfigError
from qat_lib.files.npy import unpack_arrays
from qat_lib.models.weight_files import reading_weights, refuse_unused


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Load weights for all parameters and buffers of a module, in place.

    Args:
        module: the module.
        path: a ``.npz`` file with the names of ``module.state_dict()``. Counts of training steps
            (``num_batches_tracked``) are optional.

    Raises:
        ConfigError: the file is missing, damaged or too large to unpack, or its names, shapes or
            types differ from those of the module; the module is not changed.
    """
    file = Path(path)
    with reading_weights(file, (".npz",), type(module).__name__):
        arrays = unpack_arrays(file)
        state = module.state_dict()
        for name, value in state.items():
            if name in arrays:
                _check(name, arrays[name], value)
            elif not name.endswith("num_batches_tracked"):
                raise ConfigError(f"The weights lack {name!r}, which the module needs.")
        refuse_unused(arrays, state, type(module).__name__)
        loaded = {name: torch.from_numpy(arrays[name]) for name in state if name in arrays}
        # After all checks, so that an error leaves the module unchanged.
        module.load_state_dict({**state, **loaded})


def _check(name: str, array: np.ndarray, expected: torch.Tensor) -> None:
    found, wanted = array.dtype.kind, "f" if expected.is_floating_point() else "i"
    if array.shape != tuple(expected.shape) or found != wanted:
        raise ConfigError(
            f"Expected {name!r} of shape {tuple(expected.shape)} and type {expected.dtype}. "
            f"Received: {array.dtype} of shape {array.shape}."
        )
