"""Small residual networks as ONNX files; engines built once per session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, EngineArtifact, build_engine, layers_path, manifest_path

NETWORK = ResidualNetwork(blocks=(1, 1), widths=(8, 16), image=(1, 8, 8), stem=8)


@pytest.fixture(scope="session")
def fp32_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("onnx") / "fp32.onnx", NETWORK)


@pytest.fixture(scope="session")
def int8_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("onnx") / "int8.onnx", NETWORK, "int8")


@pytest.fixture(scope="session", params=["openvino", "onnxruntime"])
def cpu_backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)  # OpenVINO has no wheels for Python 3.10
    return str(request.param)


@pytest.fixture(scope="session")
def built(
    cpu_backend: str, int8_onnx: Path, tmp_path_factory: pytest.TempPathFactory
) -> EngineArtifact:
    """An INT8 engine per CPU backend; tests must not change it."""
    spec = BuildSpec(backend=cpu_backend, max_batch_size=8, classes=tuple("0123456789"))  # type: ignore[arg-type]
    return build_engine(
        int8_onnx, spec, output=tmp_path_factory.mktemp(cpu_backend) / "model.engine"
    )


@pytest.fixture
def engine_copy(built: EngineArtifact, tmp_path: Path) -> Path:
    """A copy of engine and manifest that a test may damage."""
    for path in (built.path, manifest_path(built.path), layers_path(built.path)):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path / built.path.name
