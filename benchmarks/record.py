"""Write a benchmark's figures and its environment to a file.

``docs/tools/measurements.py`` reads it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from qat_lib.engines.environment import cpu_device

# The networks that benchmarks and tests share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "qat_lib" / "helpers"))

LIBRARIES = (
    *("tensorflow", "keras", "torch", "tf2onnx", "onnxruntime", "openvino", "nncf"),
    "ultralytics",
)


def write(path: Path, figures: dict[str, Any]) -> None:
    """Write ``figures`` to ``path`` as JSON with their environment.

    That is the day, the machine and the libraries' versions.
    """
    content = {
        "measured": {
            "day": date.today().isoformat(),
            "processor": cpu_device()["name"],
            "cores": len(os.sched_getaffinity(0)),
            "load_average": round(os.getloadavg()[2], 2),
            "versions": {"python": platform.python_version(), **versions()},
        },
        **figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of the libraries that matter to the figures."""
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found
