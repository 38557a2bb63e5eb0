"""The PyTorch front end of ``qat_lib.ptq``; see ``FrontEnd`` there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from qat_lib.errors import ConfigError
from qat_lib.export.finish import ExportReport
from qat_lib.lockstep.bias import EqualizationChoice
from qat_lib.torch.apply import apply_plan
from qat_lib.torch.calibration import calibrate
from qat_lib.torch.convert import WRITTEN_OPSET
from qat_lib.torch.correction import correct_bias
from qat_lib.torch.export import export_onnx
from qat_lib.torch.lockstep import data_arguments, first_samples
from qat_lib.torch.older_opset import NewerOperatorError
from qat_lib.torch.planner import module_graph

__all__ = ["apply_plan", "calibrate", "correct_bias", "export_like", "input_names", "prepare"]


def prepare(
    module: nn.Module,
    data: Any,
    setting: Literal["auto"] | bool,
    _quantize: Callable[[Any, Any], Any],
    *,
    batch_size: int = 32,
) -> EqualizationChoice:
    """Return the traced module with tensor shapes from the first samples."""
    if setting is True:
        raise ConfigError(
            "Equalization supports Keras models only. Received: a PyTorch module. Set "
            "equalize=False."
        )
    # Two samples, so that no operation is specialized for one.
    names, (example, *_) = first_samples(module, data, 2, batch_size)
    graph = module_graph(module, dict(zip(names, example, strict=True)))
    return EqualizationChoice(model=graph.model, applied=False, reason="a PyTorch module")


def export_like(
    module: nn.Module, path: Path, example: Mapping[str, np.ndarray], **options: Any
) -> ExportReport:
    """Export a module with the shapes of a batch of its inputs.

    The operator set is the default one, or PyTorch's own if the module needs its operators.
    """
    parameter = next(module.parameters(), None)
    device = None if parameter is None else parameter.device
    tensors = {name: torch.tensor(x[:2], device=device) for name, x in example.items()}
    try:
        return export_onnx(module, path, example_input=tensors, **options)
    except NewerOperatorError:
        return export_onnx(module, path, example_input=tensors, opset=WRITTEN_OPSET, **options)


def input_names(module: nn.Module, data: Any) -> list[str]:
    """Return the names of forward's arguments that data is for."""
    return data_arguments(module, data)
