"""Extras of qatline and their packages, one table for all install hints."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

_PACKAGES = {
    "keras": ("tensorflow", "keras", "tf2onnx", "onnx_ir"),
    "engine": ("onnx", "onnxruntime", "openvino"),
    "tensorrt": ("cuda",),
    "torch": ("torch", "onnxscript"),
    "data": ("sklearn", "PIL"),
    "report": ("jinja2", "markupsafe"),
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
_EXTRAS = {package: extra for extra, packages in _PACKAGES.items() for package in packages}


def missing_hint(error: ImportError) -> str | None:
    """Return the extra to install for a failed import, or None."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in _EXTRAS:
        return None
    return f"This needs the package {package}, which is not installed. {install_hint([package])}"


def missing_packages(packages: Iterable[str]) -> list[str]:
    """Return those of ``packages`` that are not installed; nothing is imported."""
    return [package for package in packages if importlib.util.find_spec(package) is None]


def install_hint(packages: Iterable[str]) -> str:
    """Return the command that installs the extras of ``packages``."""
    extras = ",".join(dict.fromkeys(_EXTRAS[package] for package in packages))
    return f"Install it with: pip install 'qatline[{extras}]'"
