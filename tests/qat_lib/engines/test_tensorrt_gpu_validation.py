"""The GPU validation script, end to end on each version's fake."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeDevice, FakeTensorRT
from fake_tensorrt import VERSIONS
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.tensorrt import backend as backend_module

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_validation.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_validation", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.matrix
@pytest.mark.parametrize("version", VERSIONS)
def test_the_script_writes_complete_results(
    script: Any,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = FakeTensorRT(version, FakeDevice())
    monkeypatch.setattr(backend_module, "import_tensorrt", lambda: fake.module)
    monkeypatch.setattr(backend_module, "CudaDevice", lambda: fake.device)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(script, "BATCHES", (1, 4))
    output = tmp_path / "results.json"
    assert script.main(["--here", "--small", "--seconds", "0.02", "-o", str(output)]) == 0
    results = json.loads(output.read_text())
    assert results["tensorrt"] == fake.module.__version__
    assert results["device"]["name"] == "Fake A100"
    rows = {row["precision"]: row for row in results["engines"]}
    assert set(rows) == {"fp32", "fp16", "int8"}
    assert rows["fp16"]["onnx"] == (
        "default-fp32.onnx" if version == "8.6" else "default-fp16.onnx"
    )
    assert rows["int8"]["check"]["passed"]
    assert rows["int8"]["prediction"]["matched"] > 0
    assert [latency["batch_size"] for latency in rows["int8"]["latency"]] == [1, 4]
    assert "difference from ONNX Runtime 0 of 0.02" in capsys.readouterr().out
    assert fake.device.leaked == 0


def test_a_machine_without_a_driver_is_told_so(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "find_tensorrt_here", lambda: "no tensorrt")
    monkeypatch.setattr(script, "has_driver", lambda: False)
    with pytest.raises(SystemExit, match="no NVIDIA driver"):
        script.main(["--environment", str(tmp_path / "env")])
    assert not (tmp_path / "env").exists()


def test_widened_weights_are_the_same_numbers(script: Any, int8_onnx: Path, tmp_path: Path) -> None:
    script.widen_weights(int8_onnx, tmp_path / "wide.onnx")
    direct = write_network(tmp_path / "direct.onnx", ResidualNetwork(), "int8", weights="qdq")
    batch = {"input": np.random.default_rng(0).standard_normal((4, 1, 8, 8), dtype=np.float32)}
    paths = (int8_onnx, tmp_path / "wide.onnx", direct)
    first, second, third = (reference_session(path).run(None, batch)[0] for path in paths)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)
