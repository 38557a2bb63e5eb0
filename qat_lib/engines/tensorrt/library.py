"""The ``tensorrt`` module: its import, version and entry objects."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from pathlib import Path
from typing import Any

from qat_lib.engines.tensorrt.callbacks import BuildLog, make_logger
from qat_lib.errors import BackendUnavailableError

# Dependencies of TensorRT 8.6's plugin library, at their paths in the wheels nvidia-cublas-cu12 and
# nvidia-cudnn-cu12. The dynamic linker does not search these paths.
_CUDA_LIBRARIES = (
    "cublas/lib/libcublasLt.so.12",
    "cublas/lib/libcublas.so.12",
    "cudnn/lib/libcudnn.so.8",
)


def import_tensorrt() -> Any:
    """Return the ``tensorrt`` module.

    Raises:
        BackendUnavailableError: the module is not installed, or its libraries can't be loaded.
    """
    try:
        try:
            return importlib.import_module("tensorrt")
        except ImportError as error:
            if not _preload_cuda_wheels(error):
                raise
            return importlib.import_module("tensorrt")
    except ImportError as error:
        raise BackendUnavailableError(
            f"The tensorrt backend needs NVIDIA's tensorrt package ({error}). Install "
            "tensorrt-cu12 (10.12 or newer), tensorrt-cu13 (11), or on Python 3.10 tensorrt==8.6.0 "
            "with nvidia-cublas-cu12 and nvidia-cudnn-cu12<9; and qatline[tensorrt] for device "
            "memory."
        ) from error


def _preload_cuda_wheels(error: ImportError) -> bool:
    """Load CUDA's libraries from wheels if one is missing, and return whether any was loaded."""
    if "libcu" not in str(error):
        return False
    package = importlib.util.find_spec("nvidia")
    loaded = False
    for root in map(Path, (package and package.submodule_search_locations) or ()):
        for library in _CUDA_LIBRARIES:
            if (root / library).is_file():
                ctypes.CDLL(str(root / library), mode=ctypes.RTLD_GLOBAL)
                loaded = True
    return loaded


def make_entry(trt: Any, name: str, log: BuildLog) -> tuple[Any, Any]:
    """Return a ``Builder`` or ``Runtime`` and the logger that must outlive it.

    Raises:
        BackendUnavailableError: TensorRT returned no object, for lack of a usable GPU or driver.
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
