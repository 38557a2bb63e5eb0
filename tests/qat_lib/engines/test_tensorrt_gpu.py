"""TensorRT on a real GPU (opt-in: ``-m gpu``).

Skipped where TensorRT or the GPU is missing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, build_engine, load_engine
from qat_lib.engines.check import check_engine
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.tensorrt.backend import TensorRTBackend
from qat_lib.errors import BackendUnavailableError, EngineError

pytestmark = pytest.mark.gpu

NETWORK = ResidualNetwork(blocks=(1, 2), widths=(32, 64), image=(3, 32, 32), stem=32)


@pytest.fixture(scope="module", autouse=True)
def version() -> str:
    try:
        return TensorRTBackend().version()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(
        tmp_path_factory.mktemp("gpu") / "int8.onnx", NETWORK, "int8", weights="qdq"
    )


@pytest.fixture(scope="module")
def engine_path(onnx: Path) -> Path:
    spec = BuildSpec(
        backend="tensorrt", max_batch_size=16, timing_cache=onnx.with_name("timing.cache")
    )
    artifact = build_engine(onnx, spec)
    assert artifact.manifest.precision.int8_layers > 0
    return artifact.path


def test_outputs_agree_with_onnx_runtime(engine_path: Path, onnx: Path) -> None:
    result = check_engine(engine_path, onnx)
    assert result.passed, result.message


def test_batches_of_every_size(engine_path: Path, onnx: Path) -> None:
    session = reference_session(onnx)
    with load_engine(engine_path) as engine:
        for size in (16, 1, 5):
            batch = engine.random_batch(size, seed=size)
            (expected,) = session.run(None, batch)
            received = engine.infer(batch)["logits"]
            assert received.shape == expected.shape
            assert (received.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.8
        with pytest.raises(EngineError, match="takes shapes"):
            engine.infer(np.zeros((17, 3, 32, 32), np.float32))


def test_benchmark_and_timed_layers(engine_path: Path) -> None:
    with load_engine(engine_path) as engine:
        latency = engine.benchmark(batch_size=8, seconds=0.5)
        assert latency.compute is not None
        assert 0 < latency.compute.p50 <= latency.end_to_end.p50
        assert sum(layer.time_ms or 0 for layer in engine.layers(timed=True)) > 0


def test_timing_cache_is_filled(engine_path: Path) -> None:
    assert engine_path.with_name("timing.cache").stat().st_size > 0


def test_cancelled_build_leaves_nothing(onnx: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cancelled"):
        build_engine(
            onnx,
            BuildSpec(backend="tensorrt"),
            output=tmp_path / "m.engine",
            cancelled=lambda: True,
        )
    assert list(tmp_path.iterdir()) == []
