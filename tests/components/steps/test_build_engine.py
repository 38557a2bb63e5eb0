"""The build_engine step: three variants in, three checked engines out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import load as load_onnx
from onnx import save as save_onnx
from onnx.helper import set_model_props
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, build_engine, read_manifest
from qat_lib.engines.backend import get_backend
from qat_lib.engines.openvino import OpenVINOEngine
from qat_lib.errors import EngineBuildError
from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Dataset, Exported
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.artifacts.variants import Variant
from qatline.components.settings import EngineSettings
from qatline.components.steps.build_engine import build_engine_step, build_jobs, warn_of_float
from qatline.components.support.events import NullProgress

PREPROCESSING = Preprocessing(
    image_shape=(8, 8, 1), dtype="float32", scale=0.0625, mean=(0.0,), std=(1.0,)
)
BRIGHT = 8.0
"""More than any value of a random request."""
SETTINGS = EngineSettings.model_validate({"batch_size": 4, "backend": "openvino"})


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("onnx")
    write_network(directory / "fp32.onnx", ResidualNetwork())
    write_network(directory / "ptq.onnx", ResidualNetwork(), "int8")
    write_network(directory / "qat.onnx", ResidualNetwork(seed=1), "int8")
    return directory


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dataset")
    Dataset(directory).write_preprocessing(PREPROCESSING)
    DatasetInfo(
        kind="digits",
        classes=tuple("0123456789"),
        inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
        splits={"test": 1},
        fingerprint="",
        source="",
    ).save(directory)
    return directory


def test_every_variant_becomes_an_engine(export: Path, dataset: Path, tmp_path: Path) -> None:
    metrics = build_engine_step(
        export, tmp_path, engine=SETTINGS, seed=0, progress=NullProgress(), dataset=dataset
    )
    assert (metrics["fp32_int8_layers"], metrics["fp32_weighted_layers"]) == (0, 7)
    assert metrics["ptq_int8_layers"] == metrics["qat_int8_layers"] == 7
    assert metrics["qat_bytes"] == (tmp_path / "qat.engine").stat().st_size
    summary = json.loads((tmp_path / "build.json").read_text())
    assert summary["backend"] == "openvino"
    assert len(summary["variants"]["fp32"]["float_weighted_layers"]) == 7
    prediction = summary["variants"]["qat"]["prediction"]
    assert prediction["matched"] == 7
    assert prediction["precision_score"] == 1.0
    assert "prediction" not in summary["variants"]["fp32"]
    for variant in ("fp32", "ptq", "qat"):
        manifest = read_manifest(tmp_path / f"{variant}.engine")
        assert Preprocessing.from_dict(manifest.preprocessing or {}) == PREPROCESSING
        assert len(manifest.classes) == 10
        assert manifest.spec["shapes"]["input"] == "1x1x8x8,4x1x8x8,4x1x8x8"
        assert (tmp_path / f"{variant}.layers.json").is_file()


@pytest.mark.parametrize("has_fp16", [True, False])
def test_fp16_is_built_where_the_backend_has_it(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin_fp16: Any, has_fp16: bool
) -> None:
    pin_fp16(has_fp16, monkeypatch)
    metrics = build_engine_step(export, tmp_path, engine=SETTINGS, seed=0, progress=NullProgress())
    assert ("fp16_bytes" in metrics) == (tmp_path / "fp16.engine").is_file() == has_fp16


@pytest.mark.parametrize(("setting", "fails"), [("auto", False), ("always", True)])
def test_half_engine_that_fails_is_left_out(
    export: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pin_fp16: Any,
    progress: Any,
    setting: str,
    fails: bool,
) -> None:
    """It is only compared with: a CPU that can't run it, or runs it wrongly, stops no run."""

    def refusing(file: Path, spec: BuildSpec, **options: Any) -> Any:
        if spec.float_precision == "fp16":
            raise EngineBuildError("no kernel for stem_pool")
        return build_engine(file, spec, **options)

    pin_fp16(True, monkeypatch)
    monkeypatch.setattr("qatline.components.steps.build_engine.build", refusing)
    settings = SETTINGS.model_copy(update={"fp16": setting})
    if fails:
        with pytest.raises(EngineBuildError, match="stem_pool"):
            build_engine_step(export, tmp_path, engine=settings, seed=0, progress=progress)
        return
    metrics = build_engine_step(export, tmp_path, engine=settings, seed=0, progress=progress)
    assert "fp16_bytes" not in metrics
    assert progress.warnings == [
        "fp16: no engine, so INT8 is not compared with it: no kernel for stem_pool"
    ]
    assert (tmp_path / "qat.engine").is_file()


def test_openvino_precisions_match_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Core:
        def get_property(self, device: str, name: str) -> list[str]:
            assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
            return ["FP32", "FP16", "BF16", "INT8", "BIN"]

    assert "fp32" in get_backend("openvino").float_precisions()  # on this machine
    monkeypatch.setattr("qat_lib.engines.openvino._core", Core)
    assert get_backend("openvino").float_precisions() == ("fp32", "fp16", "bf16")


def with_fp16(export: Path, onnx: Path) -> Path:
    copied = shutil.copytree(export, onnx)
    write_network(copied / "fp16.onnx", ResidualNetwork(), "fp16")
    return copied


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_graph_in_fp16_becomes_an_engine_too(
    export: Path,
    tmp_path: Path,
    progress: Any,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    pin_fp16: Any,
) -> None:
    pin_fp16(False, monkeypatch)
    onnx = with_fp16(export, tmp_path / "onnx")
    settings = EngineSettings.model_validate({"batch_size": 4, "backend": backend})
    metrics = build_engine_step(onnx, tmp_path, engine=settings, seed=0, progress=progress)
    assert metrics["fp16_weighted_layers"] == 7
    assert any("computes the FP16 graph in fp32" in warning for warning in progress.warnings)
    off = EngineSettings.model_validate({"batch_size": 4, "backend": backend, "fp16": "never"})
    (tmp_path / "off").mkdir()
    assert "fp16_bytes" not in build_engine_step(
        onnx, tmp_path / "off", engine=off, seed=0, progress=progress
    )


@pytest.mark.parametrize(("precision", "warned"), [("fp16", False), ("bf16", True), ("fp32", True)])
def test_engine_without_real_fp16_is_named(progress: Any, precision: str, warned: bool) -> None:
    layers = [
        SimpleNamespace(weighted=True, precision=precision),
        SimpleNamespace(weighted=False, precision="fp32"),
    ]
    manifest = SimpleNamespace(backend="openvino")
    warn_of_float(SimpleNamespace(layers=layers, manifest=manifest), progress)  # type: ignore[arg-type]
    assert [f"computes the FP16 graph in {precision}" in text for text in progress.warnings] == [
        True
    ] * warned


@pytest.mark.parametrize(
    ("precisions", "setting", "built"),
    [
        (("fp32",), "auto", set()),
        (("fp32", "bf16"), "auto", {"bf16"}),
        (("fp32", "fp16", "bf16"), "auto", {"fp16", "bf16"}),
        (("fp32", "fp16", "bf16"), "never", set()),
    ],
)
def test_half_precisions_are_built_where_the_backend_has_them(
    export: Path,
    monkeypatch: pytest.MonkeyPatch,
    precisions: tuple[str, ...],
    setting: str,
    built: set[str],
) -> None:
    backend = SimpleNamespace(float_precisions=lambda: precisions)
    monkeypatch.setattr("qatline.components.steps.build_engine.get_backend", lambda name: backend)
    jobs = build_jobs(Exported(export), BuildSpec(backend="openvino"), setting)
    assert set(jobs) - {"fp32", "ptq", "qat"} == built
    for name in built:
        path, spec = jobs[Variant(name)]
        assert (path.name, spec.float_precision) == ("fp32.onnx", name)


@pytest.mark.parametrize(
    ("precisions", "file", "precision"),
    [(("fp32", "fp16"), "fp32.onnx", "fp16"), (("fp32",), "fp16.onnx", "fp32")],
    ids=["TensorRT 8.6 has a flag", "TensorRT 10 takes it from the graph"],
)
def test_tensorrt_gets_fp16_as_its_version_wants_it(
    export: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precisions: tuple[str, ...],
    file: str,
    precision: str,
) -> None:
    backend = SimpleNamespace(float_precisions=lambda: precisions)
    monkeypatch.setattr("qatline.components.steps.build_engine.get_backend", lambda name: backend)
    jobs = build_jobs(
        Exported(with_fp16(export, tmp_path / "onnx")), BuildSpec(backend="tensorrt"), "auto"
    )
    path, spec = jobs["fp16"]
    assert (path.name, spec.float_precision) == (file, precision)
    assert {spec.float_precision for name, (_, spec) in jobs.items() if name != "fp16"} == {"fp32"}


def test_requested_fp16_without_export_stops_step(export: Path, tmp_path: Path) -> None:
    settings = EngineSettings.model_validate({"backend": "onnxruntime", "fp16": "always"})
    with pytest.raises(EngineBuildError, match=r"needs .*fp16\.onnx. Run export_onnx again"):
        build_engine_step(export, tmp_path, engine=settings, seed=0, progress=NullProgress())


def test_backend_follows_the_export_target(export: Path, tmp_path: Path, progress: Any) -> None:
    onnx = shutil.copytree(export, tmp_path / "onnx")
    for variant in ("fp32", "ptq", "qat"):
        model = load_onnx(onnx / f"{variant}.onnx")
        set_model_props(model, {"qatline.target": "onnxruntime"})
        save_onnx(model, onnx / f"{variant}.onnx")
    auto = EngineSettings.model_validate({"batch_size": 4, "fp16": "never"})
    build_engine_step(onnx, tmp_path, engine=auto, seed=0, progress=progress)
    assert json.loads((tmp_path / "build.json").read_text())["backend"] == "onnxruntime"
    assert "set engine.backend=openvino and run export_onnx again" in progress.warnings[0]
    build_engine_step(onnx, tmp_path, engine=SETTINGS, seed=0, progress=progress)
    assert json.loads((tmp_path / "build.json").read_text())["backend"] == "openvino"


def test_auto_builds_all_engines_with_a_backend_that_is_right(
    export: Path, tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OpenVINOEngine._run

    def wrong(self: Any, request: Any, values: Any) -> dict[str, Any]:
        answers = run(self, request, values)
        return {k: 2 * v for k, v in answers.items()} if self.manifest.quantized else answers

    monkeypatch.setattr(OpenVINOEngine, "_run", wrong)
    auto = EngineSettings.model_validate({"batch_size": 4, "fp16": "never"})
    build_engine_step(export, tmp_path, engine=auto, seed=0, progress=progress)
    assert json.loads((tmp_path / "build.json").read_text())["backend"] == "onnxruntime"
    for variant in ("fp32", "ptq", "qat"):
        assert read_manifest(tmp_path / f"{variant}.engine").backend == "onnxruntime"
    assert "ONNX Runtime builds all engines instead" in progress.warnings[0]
    with pytest.raises(EngineBuildError, match="The fault is in openvino"):
        build_engine_step(export, tmp_path, engine=SETTINGS, seed=0, progress=progress)


def test_auto_compares_engines_on_images(
    export: Path, tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that random requests don't reach."""
    run, dataset = OpenVINOEngine._run, tmp_path / "dataset"

    def wrong(self: Any, request: Any, values: Any) -> dict[str, Any]:
        answers = run(self, request, values)
        bright = self.manifest.quantized and max(np.max(value) for value in values) > BRIGHT
        return {k: 2 * v for k, v in answers.items()} if bright else answers

    dataset.mkdir()
    written = Dataset(dataset)
    written.write_preprocessing(PREPROCESSING)
    images = np.random.default_rng(0).uniform(0, 4 * BRIGHT / PREPROCESSING.scale, (8, 8, 8, 1))
    np.save(written.input_file("calibration"), images.astype(np.float32))
    np.save(written.targets_file("calibration"), np.zeros(8, np.int64))
    DatasetInfo(
        kind="digits",
        classes=tuple("0123456789"),
        inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
        splits={"calibration": 8},
        fingerprint="",
        source="",
    ).save(dataset)
    auto = EngineSettings.model_validate({"batch_size": 4, "fp16": "never"})
    given: dict[str, Any] = {"engine": auto, "seed": 0, "progress": progress, "dataset": dataset}
    build_engine_step(export, tmp_path, **given)
    assert json.loads((tmp_path / "build.json").read_text())["backend"] == "openvino"
    monkeypatch.setattr(OpenVINOEngine, "_run", wrong)
    build_engine_step(export, tmp_path, **given)
    assert json.loads((tmp_path / "build.json").read_text())["backend"] == "onnxruntime"
    assert "ONNX Runtime builds all engines instead" in progress.warnings[-1]


def test_a_missing_variant_stops_the_step(export: Path, tmp_path: Path) -> None:
    partial = tmp_path / "onnx"
    partial.mkdir()
    (partial / "fp32.onnx").write_bytes((export / "fp32.onnx").read_bytes())
    with pytest.raises(EngineBuildError, match=r"holds no ptq\.onnx, qat\.onnx"):
        build_engine_step(partial, tmp_path, engine=SETTINGS, seed=0, progress=NullProgress())
