"""Quantization-aware training for PyTorch, with the Keras side's plan, passes and engines.

The package requires the extra ``qatline[torch]`` and imports neither TensorFlow nor Keras. Names
are imported on first use.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qat_lib.errors import MissingPackageError
from qat_lib.support.extras import install_hint, missing_packages

if missing_packages(["torch"]):
    raise MissingPackageError(
        f"qat_lib.torch needs the package torch, which is not installed. {install_hint(['torch'])}",
        name="torch",
    )

# torch.export imports Triton, if installed. Triton 3.8 ends the process with a segmentation fault if
# TensorFlow 2.21 was imported before it, but not in the other order.
if "tensorflow" in sys.modules:
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
else:
    with suppress(ImportError):
        importlib.import_module("triton")

if TYPE_CHECKING:
    from qat_lib.torch.apply import apply_plan
    from qat_lib.torch.calibration import calibrate
    from qat_lib.torch.correction import correct_bias
    from qat_lib.torch.export import export_onnx
    from qat_lib.torch.export_mode import enable_onnx_export
    from qat_lib.torch.fake_quantization import fake_quantize
    from qat_lib.torch.folding import folded_weights
    from qat_lib.torch.naming import model_quantizers
    from qat_lib.torch.parity import check_parity
    from qat_lib.torch.planner import plan_quantization
    from qat_lib.torch.quantize import quantize_model
    from qat_lib.torch.tensor_quant import QuantDescriptor
    from qat_lib.torch.tensor_quantizer import TensorQuantizer

__all__ = [
    "QuantDescriptor",
    "TensorQuantizer",
    "apply_plan",
    "calibrate",
    "check_parity",
    "correct_bias",
    "enable_onnx_export",
    "export_onnx",
    "fake_quantize",
    "folded_weights",
    "model_quantizers",
    "plan_quantization",
    "quantize_model",
]

# Module of each name. The imports above repeat it for type checkers and editors.
_HOMES = {
    "apply_plan": "qat_lib.torch.apply",
    "calibrate": "qat_lib.torch.calibration",
    "correct_bias": "qat_lib.torch.correction",
    "enable_onnx_export": "qat_lib.torch.export_mode",
    "export_onnx": "qat_lib.torch.export",
    "fake_quantize": "qat_lib.torch.fake_quantization",
    "folded_weights": "qat_lib.torch.folding",
    "model_quantizers": "qat_lib.torch.naming",
    "check_parity": "qat_lib.torch.parity",
    "plan_quantization": "qat_lib.torch.planner",
    "quantize_model": "qat_lib.torch.quantize",
    "QuantDescriptor": "qat_lib.torch.tensor_quant",
    "TensorQuantizer": "qat_lib.torch.tensor_quantizer",
}

if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'qat_lib.torch' has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
