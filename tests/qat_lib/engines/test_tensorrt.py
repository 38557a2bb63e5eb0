"""The real TensorRT code on a strict fake of each supported version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_gpu import GPU, FakeDevice, FakeTensorRT
from fake_tensorrt import VERSIONS, Script, load_snapshot, make_fake
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, EngineArtifact, build_engine, load_engine, parse_shapes
from qat_lib.engines.manifest import seal
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.tensorrt import backend as backend_module
from qat_lib.engines.tensorrt.backend import TensorRTBackend
from qat_lib.engines.tensorrt.capabilities import TABLE, capabilities_of
from qat_lib.engines.tensorrt.runtime import TensorRTEngine
from qat_lib.errors import (
    BackendUnavailableError,
    ConfigError,
    EngineBuildError,
    EngineError,
    EngineLoadError,
)


@pytest.fixture(params=VERSIONS)
def trt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeTensorRT:
    """One version, installed as far as the backend can see."""
    fake = FakeTensorRT(request.param, FakeDevice())
    monkeypatch.setattr(backend_module, "import_tensorrt", lambda: fake.module)
    monkeypatch.setattr(backend_module, "CudaDevice", lambda: fake.device)
    return fake


@pytest.fixture(scope="session")
def qdq_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An INT8 graph with FP32 + Q + DQ weights.

    Every version takes it.
    """
    return write_network(
        tmp_path_factory.mktemp("onnx") / "qdq.onnx", ResidualNetwork(), "int8", weights="qdq"
    )


def build(onnx: Path, tmp_path: Path, **spec: Any) -> EngineArtifact:
    return build_engine(
        onnx,
        BuildSpec(backend="tensorrt", **{"max_batch_size": 8, **spec}),
        output=tmp_path / "m.engine",
    )


# ---------------------------------------------------------------------- build
def test_build_and_run(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    artifact = build(qdq_onnx, tmp_path)
    assert (
        artifact.manifest.precision.int8_layers == artifact.manifest.precision.weighted_layers == 7
    )
    assert artifact.manifest.device["name"] == "Fake A100"
    assert artifact.manifest.device["compute_capability"] == "8.0"
    assert artifact.manifest.inputs[0].shape == (None, 1, 8, 8)
    assert artifact.manifest.device_memory_bytes == 1 << 20
    with load_engine(artifact.path) as engine:
        for size in (8, 1, 3, 8):
            batch = engine.random_batch(size, seed=size)
            (expected,) = reference_session(qdq_onnx).run(None, batch)
            np.testing.assert_array_equal(engine.infer(batch["input"])["logits"], expected)
    assert trt.device.leaked == 0


def test_order_of_calls(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    build(qdq_onnx, tmp_path, timing_cache=tmp_path / "cache.bin", workspace_mib=2**10)
    wanted = [
        "Builder",
        "Builder.create_network",
        "OnnxParser",
        "OnnxParser.parse_from_file",
        "Builder.create_builder_config",
        "IBuilderConfig.set_memory_pool_limit",
        "IBuilderConfig.profiling_verbosity=",
        "IBuilderConfig.add_optimization_profile",
        "IBuilderConfig.set_timing_cache",
        "Builder.build_serialized_network",
        "ITimingCache.serialize",
        "Runtime",
        "Runtime.deserialize_cuda_engine",
        "EngineInspector.get_engine_information",
        "Runtime",  # loaded again from its file, to compare its answers
        "Runtime.deserialize_cuda_engine",
    ]
    assert [call for call in trt.calls if call in wanted] == wanted


def test_flags_of_each_version(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    build(qdq_onnx, tmp_path)
    flags = trt.module.NetworkDefinitionCreationFlag
    if trt.module.__version__.startswith("8"):
        assert trt.network_flags == 1 << int(flags.EXPLICIT_BATCH)
        assert trt.config.__dict__["flags"] == ["INT8", "FP16"]
    else:
        assert trt.network_flags == 1 << int(flags.STRONGLY_TYPED)
        assert trt.config.__dict__["flags"] == []


def test_fp16_flag_on_8_graph_property_later(
    trt: FakeTensorRT, fp32_onnx: Path, tmp_path: Path
) -> None:
    if trt.module.__version__.startswith("8"):
        build(fp32_onnx, tmp_path, float_precision="fp16")
        assert trt.config.__dict__["flags"] == ["FP16"]
    else:
        with pytest.raises(ConfigError, match="takes every type from the ONNX graph"):
            build(fp32_onnx, tmp_path, float_precision="fp16")


def test_int8_initializers_need_10(trt: FakeTensorRT, int8_onnx: Path, tmp_path: Path) -> None:
    if trt.module.__version__.startswith("8"):
        with pytest.raises(ConfigError, match="Export with weights=qdq"):
            build(int8_onnx, tmp_path)
        assert list(tmp_path.iterdir()) == []
    else:
        assert build(int8_onnx, tmp_path).manifest.precision.int8_layers == 7


def test_profiles_reach_the_builder(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    build(qdq_onnx, tmp_path, shapes=parse_shapes("input:2x1x8x8,4x...,16x..."))
    assert trt.config.__dict__["profiles"] == [
        {"input": ((2, 1, 8, 8), (4, 1, 8, 8), (16, 1, 8, 8))}
    ]
    with (
        load_engine(tmp_path / "m.engine") as engine,
        pytest.raises(EngineError, match="takes shapes from"),
    ):
        engine.infer(np.zeros((1, 1, 8, 8), np.float32))


def test_options_reach_the_config(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    build(
        qdq_onnx, tmp_path, optimization_level=5, hardware_compatible=True, version_compatible=True
    )
    config = trt.config
    assert config.builder_optimization_level == 5
    assert config.hardware_compatibility_level == trt.module.HardwareCompatibilityLevel.AMPERE_PLUS
    assert config.profiling_verbosity == trt.module.ProfilingVerbosity.DETAILED
    assert "VERSION_COMPATIBLE" in config.__dict__["flags"]


# ---------------------------------------------------------------------- failures
def test_parser_errors_are_translated(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    trt.parser_errors = [
        {
            "desc": "Scale coefficients must all be positive",
            "index": 0,
            "name": "q1",
            "operator": "QuantizeLinear",
        },
        {
            "desc": "No importer registered for op: Foo",
            "index": 1,
            "name": "foo",
            "operator": "Foo",
        },
    ]
    with pytest.raises(EngineBuildError) as caught:
        build(qdq_onnx, tmp_path)
    message = str(caught.value)
    assert "V01 " in message
    assert "a channel that is always zero needs a small one" in message
    assert "V07 " in message
    named = (
        "QuantizeLinear q1"
        if not trt.module.__version__.startswith("8")
        else "QuantizeLinear stem/kernel/QuantizeLinear"
    )
    assert named in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("logged", "message"),
    [
        ("Could not find any implementation for node dw_conv + relu.", "no kernel for dw_conv"),
        ("Error Code 2: OutOfMemory (no further information)", "ran out of GPU memory"),
        ("Internal error 42", "TensorRT built no engine. Internal error 42"),
    ],
)
def test_no_plan_is_explained(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path, logged: str, message: str
) -> None:
    trt.plan, trt.logged = None, [("ERROR", logged)]
    with pytest.raises(EngineBuildError, match=message):
        build(qdq_onnx, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_null_builder_means_no_gpu(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    """The real bindings' text, read from all three without a GPU."""
    said = load_snapshot(".".join(trt.module.__version__.split(".")[:2]))["null_builder"]
    kind, _, text = said.partition(": ")
    assert kind == "TypeError"

    def refuse(builder: Any, logger: Any) -> None:
        logger.log(
            trt.module.ILogger.Severity.WARNING, "CUDA initialization failure with error: 35."
        )
        raise TypeError(text)

    trt.script.behaviours["Builder"] = refuse
    with pytest.raises(BackendUnavailableError, match="no usable GPU or driver") as caught:
        build(qdq_onnx, tmp_path)
    assert "error: 35" in str(caught.value)


def test_without_a_gpu_tensorrt_is_not_even_touched(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    trt.device._info = None
    with pytest.raises(BackendUnavailableError, match="needs an NVIDIA GPU"):
        build(qdq_onnx, tmp_path)
    assert trt.calls == []


def test_warnings_are_summarized_and_the_log_is_kept(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    trt.logged = [
        ("WARNING", "slow tactic"),
        ("VERBOSE", "chatter"),
        ("WARNING", "slow tactic"),
        ("INFO", "done"),
    ]
    artifact = build(qdq_onnx, tmp_path)
    assert artifact.warnings == ("slow tactic (2 times)",)
    log = (tmp_path / "m.build.log").read_text()
    assert "[INFO] done" in log
    assert "chatter" not in log


def test_progress_and_cancellation(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    spec = BuildSpec(backend="tensorrt")
    output = tmp_path / "m.engine"
    build_engine(qdq_onnx, spec, output=output, on_progress=lambda *step: seen.append(step))
    monitored = not trt.module.__version__.startswith("8")
    assert seen == (
        [("Building", 0, 2), ("Building", 1, 2), ("Building", 2, 2), ("Building", 2, 2)]
        if monitored
        else []
    )
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(EngineBuildError, match="cancelled"):
        build_engine(qdq_onnx, spec, output=tmp_path / "other.engine", cancelled=lambda: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_ctrl_c_inside_a_callback_stops_the_build(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    if trt.module.__version__.startswith("8"):
        pytest.skip("TensorRT 8.6 has no progress monitor to stop a build with")

    asked: list[int] = []

    def interrupt() -> bool:
        asked.append(1)
        if len(asked) > 1:  # the first question comes before the build
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        build_engine(
            qdq_onnx,
            BuildSpec(backend="tensorrt"),
            output=tmp_path / "m.engine",
            cancelled=interrupt,
        )
    assert trt.asked_to_stop
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- timing cache
def test_timing_cache_is_read_merged_and_written(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "caches" / "timing.bin"
    build(qdq_onnx, tmp_path, timing_cache=cache)
    assert cache.read_bytes() == b"cache:qdq.onnx"

    # Another builder ends while ours runs: what it wrote stays.
    def meanwhile(profile: Any, *arguments: Any) -> None:
        cache.write_bytes(b"cache:theirs")

    trt.script.behaviours["IOptimizationProfile.set_shape"] = meanwhile
    cache.unlink()
    build(qdq_onnx, tmp_path, timing_cache=cache)
    assert cache.read_bytes() == b"cache:qdq.onnx;theirs"
    assert not caplog.messages


def test_timing_cache_that_is_no_file_stops_the_build(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineBuildError, match="Name a file that can be read and written"):
        build(qdq_onnx, tmp_path, timing_cache=tmp_path)
    assert "Builder.build_serialized_network" not in trt.calls


def test_damaged_timing_cache_is_started_anew(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "timing.bin"
    cache.write_bytes(b"rubbish")
    build(qdq_onnx, tmp_path, timing_cache=cache)
    assert cache.read_bytes() == b"cache:qdq.onnx"
    assert "started anew" in caplog.text


# ---------------------------------------------------------------------- load and run
def test_other_versions_and_gpus_are_refused(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    artifact = build(qdq_onnx, tmp_path)
    path = artifact.path.with_name("m.engine.json")
    original = json.loads(path.read_text())
    for change, message in (
        ({"backend_version": "10.0.0"}, "built by TensorRT 10.0.0, here is"),
        (
            {"device": {**original["device"], "name": "Fake T4", "compute_capability": "7.5"}},
            r"built for Fake T4 .*7\.5",
        ),
    ):
        path.write_text(seal({**original, **change}))
        with pytest.raises(EngineLoadError, match=message) as caught:
            load_engine(artifact.path)
        assert "Build the engine again" in str(caught.value)


def test_compatible_engines_run_elsewhere(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    artifact = build(qdq_onnx, tmp_path, hardware_compatible=True, version_compatible=True)
    path = artifact.path.with_name("m.engine.json")
    values = json.loads(path.read_text())
    values["device"]["name"] = "Fake H100"
    major = trt.module.__version__.split(".")[0]
    values["backend_version"] = f"{major}.0.0"
    path.write_text(seal(values))
    load_engine(artifact.path).close()
    assert "Runtime.engine_host_code_allowed=" in trt.calls
    values["backend_version"] = f"{int(major) + 1}.0.0"
    path.write_text(seal(values))
    with pytest.raises(EngineLoadError, match="built by TensorRT"):
        load_engine(artifact.path)


def test_an_engine_that_tensorrt_refuses(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    artifact = build(qdq_onnx, tmp_path)
    backend = TensorRTBackend(trt.module, trt.device)
    with pytest.raises(EngineLoadError, match="can't load the engine"):
        backend.open(b"something else", artifact.manifest)
    assert trt.device.leaked == 0


def test_out_of_memory_frees_what_was_taken(
    trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path
) -> None:
    artifact = build(qdq_onnx, tmp_path)
    trt.device.limit = 100  # bytes: not even the input's buffer fits
    with pytest.raises(EngineError, match="out of memory"):
        load_engine(artifact.path)
    assert trt.device.leaked == 0


def test_benchmark_uses_a_cuda_graph(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    with load_engine(build(qdq_onnx, tmp_path).path) as engine:
        latency = engine.benchmark(batch_size=4, seconds=0.02, warmup_seconds=0)
    assert latency.cuda_graph
    assert trt.device.launches >= latency.iterations
    assert latency.compute is not None
    assert latency.compute.p50 == pytest.approx(0.25)
    assert latency.end_to_end.p50 > 0
    assert trt.device.leaked == 0


def test_benchmark_without_a_cuda_graph(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    trt.device._capturable = False
    with load_engine(build(qdq_onnx, tmp_path).path) as engine:
        latency = engine.benchmark(seconds=0.02, warmup_seconds=0)
        assert not latency.cuda_graph
        assert trt.device.launches == 0
        batch = engine.random_batch(2)
        (expected,) = reference_session(qdq_onnx).run(None, batch)
        np.testing.assert_array_equal(engine.infer(batch)["logits"], expected)


def test_timed_layers(trt: FakeTensorRT, qdq_onnx: Path, tmp_path: Path) -> None:
    with load_engine(build(qdq_onnx, tmp_path).path) as engine:
        assert isinstance(engine, TensorRTEngine)
        timed = engine.layers(timed=True)
        assert all(layer.time_ms == 0.5 for layer in timed)
        batch = engine.random_batch(2)  # and the engine still answers, on its new context
        (expected,) = reference_session(qdq_onnx).run(None, batch)
        np.testing.assert_array_equal(engine.infer(batch)["logits"], expected)
        assert all(layer.time_ms is None for layer in engine.layers())


# ---------------------------------------------------------------------- versions and the fake
# itself
@pytest.mark.parametrize(
    "version", ["7.2.3", "8.5.1", "9.3.0", "10.0.1", "10.11.0.33", "12.0.0", "unknown"]
)
def test_unsupported_versions_are_named(version: str) -> None:
    with pytest.raises(
        BackendUnavailableError, match=r"supported are 8\.6, 10\.12 and newer, and 11"
    ):
        capabilities_of(version)


@pytest.mark.parametrize(
    ("version", "major"), [("8.6.0", 8), ("8.6.1.6", 8), ("10.12.0.36", 10), ("11.4.0.106", 11)]
)
def test_supported_versions_find_their_row(version: str, major: int) -> None:
    assert capabilities_of(version).major == major


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_agrees_with_the_snapshots(version: str) -> None:
    snapshot = load_snapshot(version)
    row = capabilities_of(snapshot["version"])
    assert row in TABLE
    assert set(row.network_flags) <= set(snapshot["enums"]["NetworkDefinitionCreationFlag"])
    assert set(row.int8_flags) | set(row.fp16_flags) <= set(snapshot["enums"]["BuilderFlag"])
    assert row.memory_property in snapshot["classes"]["ICudaEngine"]["properties"]
    assert row.parser_names_nodes == ("node_name" in snapshot["classes"]["ParserError"]["methods"])
    assert row.progress_monitor == ("IProgressMonitor" in snapshot["classes"])


def test_the_fake_is_as_strict_as_the_bindings() -> None:
    """Each line is an error with the real 11.4 bindings too."""
    trt = make_fake("11.4", Script())
    logger = trt.Logger(trt.Logger.WARNING) if hasattr(trt.Logger, "WARNING") else trt.Logger()
    builder = trt.Builder(logger)
    config = builder.create_builder_config()
    with pytest.raises(AttributeError):
        trt.BuilderFlag.INT8  # noqa: B018
    with pytest.raises(AttributeError):
        trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH  # noqa: B018
    with pytest.raises(AttributeError):
        config.max_workspace_size = 1 << 30
    with pytest.raises(AttributeError):
        config.int8_calibrator  # noqa: B018
    with pytest.raises(TypeError):
        config.set_flag(0)
    with pytest.raises(TypeError):
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE)
    with pytest.raises(TypeError):
        1 << trt.BuilderFlag.TF32
    with pytest.raises(TypeError):
        builder.create_network("flags")
    with pytest.raises(TypeError):
        trt.Builder()
    with pytest.raises(AttributeError):
        builder.create_network(0).num_inputs = 3
    assert GPU.compute_capability == "8.0"
