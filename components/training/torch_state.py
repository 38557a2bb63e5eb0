"""PyTorch states as arrays for checkpoints."""

from __future__ import annotations

from typing import Any

import torch


def to_arrays(state: Any) -> Any:
    """Return a copy of a state with arrays in place of its tensors.

    NumPy has no bfloat16: such tensors become float32, without loss.
    """
    if isinstance(state, torch.Tensor):
        kept = state.float() if state.dtype == torch.bfloat16 else state
        return kept.detach().cpu().clone().numpy()
    if isinstance(state, dict):
        return {name: to_arrays(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return [to_arrays(value) for value in state]
    return state


def to_tensors(state: Any) -> Any:
    """Return a state with tensors in place of the arrays of ``to_arrays``."""
    if isinstance(state, dict):
        return {name: to_tensors(value) for name, value in state.items()}
    if isinstance(state, list):
        return [to_tensors(value) for value in state]
    return torch.from_numpy(state) if hasattr(state, "__array__") else state
