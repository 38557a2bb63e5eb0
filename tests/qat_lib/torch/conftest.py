"""These tests need the extra qatline[torch]; without it they are not collected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.support.extras import missing_packages

collect_ignore_glob = ["*"] if missing_packages(["torch", "onnxscript"]) else []


def run_onnx(path: Path, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return a file's outputs in single-threaded, unoptimized ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return [np.asarray(y) for y in session.run(None, dict(zip(names, arrays, strict=True)))]


@pytest.fixture(name="run_onnx")
def _run_onnx() -> Callable[..., list[np.ndarray]]:
    return run_onnx


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Export a module into the test's folder and return the file."""

    def run(module: Any, example: Any, name: str = "model.onnx", **options: Any) -> Path:
        from qat_lib.torch import export_onnx

        return export_onnx(module, tmp_path / name, example_input=example, **options).path

    return run
