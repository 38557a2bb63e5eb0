"""Both CPU backends' engines answer like the reference and report precisions."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qat_lib
from qat_lib.engines import (
    BuildSpec,
    EngineArtifact,
    benchmark_together,
    build_engine,
    layers_path,
    load_engine,
    manifest_path,
    read_manifest,
)
from qat_lib.engines.agreement import bound_of
from qat_lib.engines.environment import cpu_device, cpu_kind
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.errors import ConfigError, EngineBuildError, EngineError
from qat_lib.ptq import PtqRecipe
from qat_lib.support.answers import difference


def test_engine_answers_like_the_reference(built: EngineArtifact, int8_onnx: Path) -> None:
    reference = reference_session(int8_onnx)
    with load_engine(built.path) as engine:
        for batch_size in (1, 3, 8):
            batch = engine.random_batch(batch_size, seed=batch_size)
            (expected,) = reference.run(None, batch)
            received = engine.infer(batch["input"])["logits"]
            assert received.shape == (batch_size, 10)
            assert difference([received], [expected]) <= bound_of(built.manifest, half=False)


@pytest.mark.matrix
@pytest.mark.skipif(cpu_kind() != "vnni", reason="other CPUs compute them in float")
def test_transposed_convolutions_are_in_int8(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    layers = keras.layers
    x = image = keras.Input((8, 8, 3), name="x")
    for window, step in ((2, 2), (3, 1), (4, 2)):
        up = layers.Conv2DTranspose(8, window, step, padding="same", activation="relu")
        x = layers.Conv2D(8, 3, padding="same")(up(x))
    model = keras.Model(image, x)
    data = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype(np.float32)
    quantized = PtqRecipe(backend="openvino").quantize(model, data)
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx", target="openvino")
    manifest = build_engine(tmp_path / "m.onnx", BuildSpec(backend="openvino")).manifest
    assert manifest.precision.int8_layers == manifest.precision.weighted_layers == 6


def test_infer_many_takes_any_number_of_samples(built: EngineArtifact) -> None:
    with load_engine(built.path) as engine:
        smallest, largest = engine.batch_sizes
        batch = engine.random_batch(largest, seed=1)["input"]
        images = np.concatenate([batch, batch[:3]])
        found = engine.infer_many(images)["logits"]
        assert smallest == 1
        np.testing.assert_array_equal(found[:largest], engine.infer(batch)["logits"])
        np.testing.assert_array_equal(found[largest:], engine.infer(images[largest:])["logits"])
        with pytest.raises(EngineError, match="at least one sample"):
            engine.infer_many(images[:0])


def test_fp32_engine_equals_the_reference(
    cpu_backend: str, fp32_onnx: Path, tmp_path: Path
) -> None:
    artifact = build_engine(
        fp32_onnx, BuildSpec(backend=cpu_backend), output=tmp_path / "fp32.engine"
    )  # type: ignore[arg-type]
    assert artifact.manifest.precision.int8_layers == 0
    assert artifact.manifest.precision.weighted_layers == 7
    with load_engine(artifact.path) as engine:
        batch = engine.random_batch(4)
        (expected,) = reference_session(fp32_onnx).run(None, batch)
        np.testing.assert_allclose(engine.infer(batch)["logits"], expected, atol=1e-5)


def test_openvino_runs_int8_and_names_fused_nodes(int8_onnx: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    artifact = build_engine(
        int8_onnx, BuildSpec(backend="openvino"), output=tmp_path / "int8.engine"
    )
    weighted = [layer for layer in artifact.layers if layer.weighted]
    assert [layer.precision for layer in weighted] == ["int8"] * 7
    assert (
        artifact.manifest.precision.int8_layers == artifact.manifest.precision.weighted_layers == 7
    )
    residual = next(layer for layer in weighted if "stage1_block1_conv2" in layer.nodes)
    assert {"stage1_block1_add", "stage1_block1_relu"} <= set(residual.nodes)
    # Its output carries the graph output's name.
    assert any("predictions" in layer.nodes for layer in weighted)


def test_precision_is_read_and_not_assumed(int8_onnx: Path, tmp_path: Path) -> None:
    """ONNX Runtime leaves these convolutions in FP32; the list says so."""
    artifact = build_engine(
        int8_onnx, BuildSpec(backend="onnxruntime"), output=tmp_path / "int8.engine"
    )
    assert (
        artifact.manifest.precision.int8_layers < artifact.manifest.precision.weighted_layers == 7
    )


def test_layers_carry_times_only_when_asked(built: EngineArtifact) -> None:
    with load_engine(built.path) as engine:
        assert all(layer.time_ms is None for layer in engine.layers())
        timed = engine.layers(timed=True)
    assert sum(layer.time_ms or 0 for layer in timed) > 0
    assert [layer.name for layer in timed] == [layer.name for layer in built.layers]


def test_profiled_build_writes_times(cpu_backend: str, int8_onnx: Path, tmp_path: Path) -> None:
    spec = BuildSpec(backend=cpu_backend, profile=True)  # type: ignore[arg-type]
    artifact = build_engine(int8_onnx, spec, output=tmp_path / "model.engine")
    written = json.loads(layers_path(artifact.path).read_text())["layers"]
    assert any(layer["time_ms"] for layer in written)


def test_manifest_holds_what_a_reader_needs(built: EngineArtifact, int8_onnx: Path) -> None:
    manifest = json.loads(manifest_path(built.path).read_text())
    assert manifest["bytes"] == built.path.stat().st_size
    assert manifest["inputs"] == [{"name": "input", "shape": [None, 1, 8, 8], "dtype": "float32"}]
    assert manifest["outputs"][0]["name"] == "logits"
    assert manifest["classes"] == list("0123456789")
    assert manifest["source"]["path"] == str(int8_onnx)
    assert manifest["device"]["flags"]


def test_returned_arrays_belong_to_the_caller(built: EngineArtifact) -> None:
    with load_engine(built.path) as engine:
        first = engine.infer(engine.random_batch(2, seed=1))["logits"]
        kept = first.copy()
        engine.infer(engine.random_batch(2, seed=2))
        np.testing.assert_array_equal(first, kept)


def test_infer_takes_read_only_arrays(built: EngineArtifact) -> None:
    with load_engine(built.path) as engine:
        (batch,) = engine.random_batch(2, seed=1).values()
        expected = engine.infer(batch)["logits"]
        batch.flags.writeable = False
        np.testing.assert_array_equal(engine.infer(batch)["logits"], expected)


def test_threads_share_an_engine(built: EngineArtifact) -> None:
    with load_engine(built.path) as engine:
        batches = [engine.random_batch(2, seed=seed) for seed in range(16)]
        expected = [engine.infer(batch)["logits"] for batch in batches]
        with ThreadPoolExecutor(4) as pool:
            received = list(pool.map(lambda batch: engine.infer(batch)["logits"], batches))
    for index, answer in enumerate(received):
        nearest = min(
            range(len(expected)), key=lambda other: difference([answer], [expected[other]])
        )
        assert nearest == index
        np.testing.assert_array_equal(answer, expected[index])


def test_benchmark_measures_what_it_says(built: EngineArtifact) -> None:
    with load_engine(built.path) as engine:
        latency = engine.benchmark(batch_size=4, seconds=0.05, warmup_seconds=0)
    assert latency.batch_size == 4
    assert latency.iterations >= 10
    assert 0 < latency.p50_ms <= latency.p90_ms <= latency.p99_ms
    assert latency.throughput == pytest.approx(4e3 / latency.end_to_end.mean, rel=0.2)


def test_throughput_hint_serves_several_clients(int8_onnx: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    artifact = build_engine(
        int8_onnx, BuildSpec(backend="openvino", hint="throughput"), output=tmp_path / "m.engine"
    )
    with load_engine(artifact.path) as engine:
        latency = engine.benchmark(batch_size=2, seconds=0.05, warmup_seconds=0)
        assert latency.clients == engine.clients >= 1
        assert latency.iterations >= 10 * engine.clients


def test_engines_benchmarked_in_turns(built: EngineArtifact) -> None:
    with load_engine(built.path) as first, load_engine(built.path) as second:
        found = benchmark_together({"a": first, "b": second}, batch_size=2, seconds=0.04, rounds=2)
    assert set(found) == {"a", "b"}
    assert all(latency.iterations >= 10 for latency in found.values())


def test_turns_of_a_slow_engine_share_the_least_number_of_requests(
    built: EngineArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    with load_engine(built.path) as engine:
        monkeypatch.setattr(type(engine), "infer", lambda *_: sent.append(1))
        found = benchmark_together({"a": engine}, batch_size=2, seconds=1e-9, rounds=4)
        engine.benchmark(batch_size=2, seconds=1e-9, warmup_seconds=0)
    assert found["a"].iterations == 4 * 3
    # Three requests before each of the four turns, then three before ten.
    assert len(sent) == 4 * (3 + 3) + 3 + 10


def test_float_precision_that_the_device_lacks(
    cpu_backend: str, fp32_onnx: Path, monkeypatch: pytest.MonkeyPatch, pin_fp16: Any
) -> None:
    pin_fp16(False, monkeypatch)
    with pytest.raises(ConfigError, match="computes in"):
        build_engine(fp32_onnx, BuildSpec(backend=cpu_backend, float_precision="fp16"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (np.zeros((1, 1, 8, 8)), "takes a NumPy array of float32. Received: float64"),
        ([[0.0]], "Received: list"),
        (np.zeros((1, 8, 8, 1), np.float32), r"takes shapes from \(1, 1, 8, 8\) to \(8, 1, 8, 8\)"),
        (np.zeros((9, 1, 8, 8), np.float32), r"Received: \(9, 1, 8, 8\)"),
        (np.zeros((0, 1, 8, 8), np.float32), r"Received: \(0, 1, 8, 8\)"),
        (np.full((1, 1, 8, 8), np.nan, np.float32), "64 values that are NaN or infinite"),
        (np.full((1, 1, 8, 8), np.inf, np.float32), "64 values that are NaN or infinite"),
        (
            {"image": np.zeros((1, 1, 8, 8), np.float32)},
            r"inputs are \['input'\]. Received: \['image'\]",
        ),
    ],
)
def test_wrong_input_is_named(built: EngineArtifact, batch: object, message: str) -> None:
    with load_engine(built.path) as engine, pytest.raises(EngineError, match=message):
        engine.infer(batch)  # type: ignore[arg-type]


def test_large_finite_input_is_no_error(built: EngineArtifact) -> None:
    """Only NaN and infinity are refused; other memory orders are accepted."""
    with load_engine(built.path) as engine:
        large = np.full((1, 1, 8, 8), 3e38, np.float32)
        assert engine.infer(large)["logits"].shape == (1, 10)
        strided = np.asfortranarray(engine.random_batch(4)["input"])
        np.testing.assert_allclose(
            engine.infer(strided)["logits"],
            engine.infer(np.ascontiguousarray(strided))["logits"],
            atol=1e-6,
        )


def test_raw_images_go_into_a_graph_that_preprocesses(cpu_backend: str, tmp_path: Path) -> None:
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 3])
    scale = helper.make_tensor_value_info("scale", TensorProto.FLOAT, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    nodes = [
        helper.make_node("Cast", ["image"], ["x"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "scale"], ["y"], "scaled"),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [image, scale], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    helper.set_model_props(model, {"qatline.preprocessing_embedded": "true"})
    onnx.save(model, tmp_path / "m.onnx")
    spec = BuildSpec(backend=cpu_backend, profile=True, max_batch_size=4)  # type: ignore[arg-type]
    artifact = build_engine(tmp_path / "m.onnx", spec)
    assert artifact.manifest.preprocessing_embedded
    assert artifact.manifest.inputs[0].dtype == "uint8"
    raw = np.asarray([[0, 128, 255]], np.uint8)
    with load_engine(artifact.path) as engine:
        answer = engine.infer({"image": raw, "scale": np.asarray(0.5, np.float32)})["y"]
        np.testing.assert_array_equal(answer, raw * np.float32(0.5))
        assert engine.benchmark(batch_size=4, seconds=0.01).iterations >= 10
        assert engine.layers(timed=True)
        with pytest.raises(EngineError, match=r"takes a NumPy array of uint8\. Received: float32"):
            engine.infer({"image": raw.astype(np.float32), "scale": np.asarray(0.5, np.float32)})


def test_closed_engine_says_so(built: EngineArtifact) -> None:
    engine = load_engine(built.path)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.infer(np.zeros((1, 1, 8, 8), np.float32))


def test_cancelled_build_writes_nothing(cpu_backend: str, int8_onnx: Path, tmp_path: Path) -> None:
    spec = BuildSpec(backend=cpu_backend)  # type: ignore[arg-type]
    with pytest.raises(EngineBuildError, match="cancelled"):
        build_engine(int8_onnx, spec, output=tmp_path / "m.engine", cancelled=lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_operator_that_the_backend_lacks_is_named(cpu_backend: str, tmp_path: Path) -> None:
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("x", "y")
    ]
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], name="strange")
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with pytest.raises(EngineBuildError, match="NoSuchOperator"):
        build_engine(tmp_path / "m.onnx", BuildSpec(backend=cpu_backend))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_unreadable_onnx_is_named(cpu_backend: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(EngineBuildError, match="Expected an ONNX"):
        build_engine(broken, BuildSpec(backend=cpu_backend))  # type: ignore[arg-type]
    with pytest.raises(EngineBuildError, match="No such file"):
        build_engine(tmp_path / "missing.onnx", BuildSpec(backend=cpu_backend))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [broken]


# ---------------------------------------------------------------------- OpenVINO's own properties
def build_openvino(onnx: Path, output: Path, **options: Any) -> EngineArtifact:
    pytest.importorskip("openvino")
    return build_engine(
        onnx, BuildSpec(backend="openvino", max_batch_size=2, **options), output=output
    )


def test_manifest_lists_the_properties_that_were_used(
    int8_onnx: Path, fp32_onnx: Path, tmp_path: Path
) -> None:
    plain = build_openvino(fp32_onnx, tmp_path / "fp32.engine", threads=1)
    assert dict(plain.manifest.properties) == {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": 1,
    }
    int8 = build_openvino(int8_onnx, tmp_path / "int8.engine")
    assert int8.manifest.properties["SNIPPETS_MODE"] == "DISABLE"
    own = {"SNIPPETS_MODE": "ENABLE", "INFERENCE_NUM_THREADS": 2}
    other = build_openvino(int8_onnx, tmp_path / "other.engine", properties=own)
    assert own.items() <= other.manifest.properties.items()
    assert read_manifest(other.path).properties == other.manifest.properties
    assert BuildSpec.from_dict(read_manifest(other.path).spec).properties == own
    with load_engine(int8.path) as one, load_engine(other.path) as two:
        batch = one.random_batch(2)
        np.testing.assert_array_equal(one.infer(batch)["logits"], two.infer(batch)["logits"])


def test_properties_that_the_plugin_does_not_know(
    int8_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setattr(
        "qat_lib.engines.openvino._INT8_PROPERTIES", {"NO_SUCH_PROPERTY": "DISABLE"}
    )
    artifact = build_openvino(int8_onnx, tmp_path / "model.engine")  # ours is given up
    assert "NO_SUCH_PROPERTY" not in artifact.manifest.properties
    assert artifact.manifest.precision.int8_layers == 7
    with pytest.raises(EngineBuildError, match="Unsupported property THEIRS"):  # the user's is not
        build_openvino(int8_onnx, tmp_path / "model.engine", properties={"THEIRS": 1})


def test_properties_are_for_openvino_alone() -> None:
    with pytest.raises(ConfigError, match="tensorrt has none"):
        BuildSpec(backend="tensorrt", properties={"SNIPPETS_MODE": "ENABLE"})


@pytest.mark.parametrize("limit", ["AVX2", "avx512_core"])
def test_cpu_device_leaves_out_what_kernels_may_not_use(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    whole = set(cpu_device()["flags"])
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    held = set(cpu_device()["flags"])
    assert all("vnni" in flag or flag.startswith("amx") for flag in whole - held)
    assert cpu_kind() == "avx2"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI")
    assert set(cpu_device()["flags"]) == whole
