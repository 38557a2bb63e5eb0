"""A new engine must answer like ONNX Runtime, else no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_gpu import FakeDevice, FakeTensorRT
from onnx import TensorProto, helper, numpy_helper
from recurrent_networks import FEATURES, STEPS, write_loop, write_stacked

from qat_lib.engines import BuildSpec, build_engine, load_engine, parse_shapes, read_manifest
from qat_lib.engines.engine import Engine
from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.onnxruntime import OnnxRuntimeEngine, Reference
from qat_lib.engines.openvino import OpenVINOEngine, advise
from qat_lib.engines.tensorrt import backend as tensorrt_backend
from qat_lib.engines.tensorrt.runtime import TensorRTEngine
from qat_lib.errors import EngineBuildError

Spoil = Callable[[type[Engine], Callable[[dict[str, Any]], dict[str, Any]]], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """``spoil(engine_class, change)`` lets engines answer what ``change`` makes of their answers."""

    def apply(kind: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        run = kind._run
        monkeypatch.setattr(
            kind, "_run", lambda self, request, values: change(run(self, request, values))
        )

    return apply


def swap_samples(answers: dict[str, Any]) -> dict[str, Any]:
    """Be right at batch 1 only, like a wrong batch layout."""
    return {name: np.roll(value, 1, axis=0) for name, value in answers.items()}


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime", "tensorrt"])
def test_engine_that_answers_otherwise_is_not_written(
    backend: Any, fp32_onnx: Path, tmp_path: Path, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTensorRT("10.16", FakeDevice())
    monkeypatch.setattr(tensorrt_backend, "import_tensorrt", lambda: fake.module)
    monkeypatch.setattr(tensorrt_backend, "CudaDevice", lambda: fake.device)
    spoil(
        {"openvino": OpenVINOEngine, "onnxruntime": OnnxRuntimeEngine, "tensorrt": TensorRTEngine}[
            backend
        ],
        swap_samples,
    )
    spec = BuildSpec(backend=backend, max_batch_size=8)
    with pytest.raises(EngineBuildError, match="does not answer as its ONNX graph does") as caught:
        build_engine(fp32_onnx, spec, output=tmp_path / "m.engine")
    for part in (
        "output logits differs",
        "1x1x8x8: ",
        "3x1x8x8: ",
        "8x1x8x8: ",
        "nothing was written",
    ):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    artifact = build_engine(fp32_onnx, spec, output=tmp_path / "m.engine", verify=False)
    assert read_manifest(artifact.path).verification is None
    assert fake.device.leaked == 0


def test_auto_takes_the_backend_that_answers_correctly(
    fp32_onnx: Path, tmp_path: Path, spoil: Spoil
) -> None:
    pytest.importorskip("openvino")
    spoil(OpenVINOEngine, swap_samples)
    artifact = build_engine(fp32_onnx, output=tmp_path / "m.engine")
    assert artifact.manifest.backend == "onnxruntime"
    (warning,) = artifact.warnings
    assert "The fault is in openvino" in warning
    assert warning.endswith("ONNX Runtime built the engine instead.")
    spoil(OnnxRuntimeEngine, swap_samples)
    with pytest.raises(EngineBuildError, match="The fault is in openvino"):
        build_engine(fp32_onnx, output=tmp_path / "n.engine")
    assert not (tmp_path / "n.engine").exists()


def test_engine_that_answers_nan_is_not_written(
    fp32_onnx: Path, tmp_path: Path, spoil: Spoil
) -> None:
    spoil(
        OnnxRuntimeEngine, lambda answers: {name: value * np.nan for name, value in answers.items()}
    )
    with pytest.raises(EngineBuildError, match="differs from ONNX Runtime's by inf of the spread"):
        build_engine(fp32_onnx, BuildSpec(backend="onnxruntime"), output=tmp_path / "m.engine")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1)])
def test_graph_that_answers_nan_makes_no_engine(
    fp32_onnx: Path, cpu_backend: Any, tmp_path: Path, rows: slice
) -> None:
    """Reference and engine agree in NaN, so the comparison alone would pass."""
    model = onnx.load(fp32_onnx)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if values.dtype == np.float32 and values.ndim == 2:  # the last layer's weights
            values[rows] = np.nan
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    path, output = tmp_path / "nan.onnx", tmp_path / "engine" / "m.engine"
    output.parent.mkdir()
    onnx.save(model, path)
    spec = BuildSpec(backend=cpu_backend, max_batch_size=4)
    with pytest.raises(EngineBuildError, match="NaN in the output logits for 7 of 7 random"):
        build_engine(path, spec, output=output)
    assert list(output.parent.iterdir()) == []


def test_graph_of_positive_numbers_is_compared_on_such(cpu_backend: Any, tmp_path: Path) -> None:
    """Random numbers below 0 have no logarithm."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    node = helper.make_node("Log", ["x"], ["y"], name="log")
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "positive", [x], [y])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    manifest = build_engine(path, BuildSpec(backend=cpu_backend, max_batch_size=4)).manifest
    assert manifest.verification is not None
    assert manifest.verification["differences"]["y"] < 1e-5


def test_old_engine_survives_a_wrong_one(fp32_onnx: Path, tmp_path: Path, spoil: Spoil) -> None:
    spec = BuildSpec(backend="onnxruntime", max_batch_size=2)
    artifact = build_engine(fp32_onnx, spec, output=tmp_path / "m.engine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    spoil(OnnxRuntimeEngine, swap_samples)
    with pytest.raises(EngineBuildError):
        build_engine(fp32_onnx, spec, output=artifact.path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_manifest_says_how_well_the_engine_agrees(
    int8_onnx: Path, cpu_backend: Any, tmp_path: Path
) -> None:
    spec = BuildSpec(backend=cpu_backend, max_batch_size=32)
    artifact = build_engine(int8_onnx, spec, output=tmp_path / "m.engine")
    verification = read_manifest(artifact.path).verification
    assert verification is not None
    assert verification["requests"] == ["1x1x8x8", "6x1x8x8", "32x1x8x8"]
    assert 0 <= verification["differences"]["logits"] <= verification["bound"]
    assert verification["reference"].startswith("onnxruntime ")


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_stacked_recurrent_layers_agree_in_batches(
    op: str, cpu_backend: Any, tmp_path: Path
) -> None:
    """OpenVINO 2026.4 exports and imports the second layer wrongly, except at batch 1."""
    model = write_stacked(tmp_path / "stacked.onnx", op)
    artifact = build_engine(model, BuildSpec(backend=cpu_backend, max_batch_size=8))
    verification = artifact.manifest.verification
    assert verification is not None
    assert verification["requests"][-1] == f"8x{STEPS}x{FEATURES}"
    assert verification["differences"]["logits"] < 1e-5


def test_loop_that_a_backend_lacks_is_explained(tmp_path: Path) -> None:
    """OpenVINO takes this one, but not all of Keras's recurrent layers."""
    model = write_loop(tmp_path / "loop.onnx")
    advice = advise(model, read_summary(model), "OpenVINO")
    assert advice.startswith(
        "The graph itself is right: ONNX Runtime takes it, and OpenVINO does not."
    )
    assert "ConvLSTM and recurrent layers" in advice
    assert "unroll=True" in advice
    build_engine(model, BuildSpec(backend="onnxruntime", max_batch_size=4))


def save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any]
) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        str(path),
    )
    return path


def test_operator_that_only_openvino_lacks_is_explained(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    model = save(tmp_path / "m.onnx", [helper.make_node("Det", ["x"], ["y"], "det")], [x], [y], [])
    with pytest.raises(
        EngineBuildError, match=r"Det.*The graph itself is right.*backend='onnxruntime'"
    ):
        build_engine(model, BuildSpec(backend="openvino"))


def test_integers_stay_inside_small_tables(tmp_path: Path, cpu_backend: Any) -> None:
    """An embedding of three rows can't look up row 126."""
    table = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), "table")
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5, 4])
    model = save(
        tmp_path / "m.onnx",
        [helper.make_node("Gather", ["table", "ids"], ["y"], "g")],
        [ids],
        [y],
        [table],
    )
    artifact = build_engine(model, BuildSpec(backend=cpu_backend))
    assert artifact.manifest.verification is not None
    assert artifact.manifest.verification["differences"] == {"y": 0.0}


def test_other_dynamic_dimensions_are_tried_too(tmp_path: Path, cpu_backend: Any) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "length"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "length"])
    model = save(
        tmp_path / "m.onnx", [helper.make_node("Softmax", ["x"], ["y"], "s", axis=1)], [x], [y], []
    )
    spec = BuildSpec(backend=cpu_backend, shapes=parse_shapes("x:1x4,2x16,4x64"))
    verification = build_engine(model, spec).manifest.verification
    assert verification is not None
    assert verification["requests"] == ["1x4", "2x16", "4x64"]


def test_large_request_repeats_samples_that_the_reference_has_answered(
    fp32_onnx: Path, tmp_path: Path, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    run = Reference.run

    def counted(self: Any, request: Any) -> Any:
        asked.append(len(request["input"]))
        return run(self, request)

    monkeypatch.setattr(Reference, "run", counted)
    spec = BuildSpec(backend="onnxruntime", max_batch_size=32)
    build_engine(fp32_onnx, spec, output=tmp_path / "m.engine")
    assert asked == [1, 6]

    def spoil_late(answers: dict[str, Any]) -> dict[str, Any]:
        """Be wrong in the last sample of the largest batch."""
        return {
            name: value * (np.arange(len(value)) != 31)[:, None] for name, value in answers.items()
        }

    spoil(OnnxRuntimeEngine, spoil_late)
    with pytest.raises(EngineBuildError, match=r"6x1x8x8: [0-9.e-]+; 32x1x8x8: 0\.[1-9]"):
        build_engine(fp32_onnx, spec, output=tmp_path / "m.engine")


def test_samples_may_influence_each_other(tmp_path: Path, cpu_backend: Any) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    node = helper.make_node("Softmax", ["x"], ["y"], "s", axis=0)
    model = save(tmp_path / "m.onnx", [node], [x], [y], [])
    artifact = build_engine(model, BuildSpec(backend=cpu_backend, max_batch_size=32))
    assert artifact.manifest.verification is not None
    assert artifact.manifest.verification["differences"]["y"] < 1e-6


def test_engine_of_one_shape_answers_several_requests(
    tmp_path: Path, spoil: Spoil, fp32_onnx: Path
) -> None:
    spec = BuildSpec(backend="onnxruntime", shapes=parse_shapes("input:2x1x8x8"))
    verification = build_engine(fp32_onnx, spec, output=tmp_path / "m.engine").manifest.verification
    assert verification is not None
    assert verification["requests"] == ["2x1x8x8"] * 3
    with load_engine(tmp_path / "m.engine") as engine:
        first, second = (
            engine.random_request({"input": (2, 1, 8, 8)}, seed=seed) for seed in (0, 1)
        )
    assert not np.array_equal(first["input"], second["input"])
