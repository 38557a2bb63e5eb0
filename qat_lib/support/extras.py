"""Table of qatline's extras and their packages, for install hints."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

EXTRAS = {
    "keras": ("tensorflow", "keras", "tf2onnx", "onnx_ir"),
    "engine": ("onnx", "onnxruntime", "openvino"),
    "tensorrt": ("cuda",),
    "torch": ("torch", "onnxscript"),
    "data": ("sklearn", "PIL"),
    "hf": ("datasets",),
    "serve": ("kserve", "tritonclient", "prometheus_client"),
    "sweep": ("optuna",),
    "pipeline": (
        "kfp",
        "mlflow",
        "boto3",
        "botocore",
        "google",
        "kfp_server_api",
        "kubernetes",
        "urllib3",
    ),
}
_EXTRAS = {package: extra for extra, packages in EXTRAS.items() for package in packages}


def missing_hint(error: ImportError) -> str | None:
    """Return an install hint for a failed import, or None for packages outside of the extras."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in _EXTRAS:
        return None
    return f"This needs the package {package}, which is not installed. {install_hint([package])}"


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Return the missing packages among ``packages`` without importing any."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def install_hint(packages: Iterable[str]) -> str:
    """Return the command that installs the extras of ``packages``."""
    packages = list(packages)
    extras = ",".join(dict.fromkeys(_EXTRAS[package] for package in packages))
    return f"Install {'them' if len(packages) > 1 else 'it'} with: pip install 'qatline[{extras}]'"
