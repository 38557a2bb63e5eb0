"""The ``tensorrt`` module: import it, look at its version, make its entry objects."""

from __future__ import annotations

from typing import Any

from qat_lib.engines.tensorrt.callbacks import BuildLog, make_logger
from qat_lib.errors import BackendUnavailableError


def import_tensorrt() -> Any:
    """Return the ``tensorrt`` module.

    Raises:
        BackendUnavailableError: it is not installed, or its shared libraries can't be loaded.
    """
    try:
        import tensorrt
    except ImportError as error:
        raise BackendUnavailableError(
            f"The tensorrt backend needs NVIDIA's tensorrt package ({error}). Install tensorrt-cu12 (10.12 or newer), "
            "tensorrt-cu13 (11), or on Python 3.10 tensorrt==8.6.0, and qatline[tensorrt] for device memory."
        ) from error
    return tensorrt


def make_entry(trt: Any, name: str, log: BuildLog) -> tuple[Any, Any]:
    """Return a ``Builder`` or ``Runtime`` and the logger that must outlive it.

    Raises:
        BackendUnavailableError: TensorRT gave none, which is what it does without a usable GPU or driver.
    """
    logger = make_logger(trt, log)
    try:
        return getattr(trt, name)(logger), logger
    except TypeError as error:  # pybind11: "factory function returned nullptr"
        reasons = " ".join(message for _, message in log.messages[-3:])
        raise BackendUnavailableError(
            f"TensorRT {trt.__version__} found no usable GPU or driver ({error}). {reasons} "
            "Check nvidia-smi, and that the driver is new enough for this TensorRT."
        ) from error
