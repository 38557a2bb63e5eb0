"""Engines, ONNX files and runs as sources of packages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from served_classifier import write_graph

from qat_lib.engines import BuildSpec, build_engine
from qat_lib.errors import ConfigError, EngineLoadError
from qatline.components.report import ReportFolders
from qatline.components.serving.sources import ModelSource, file_source, run_source
from qatline.components.store.manifest import MANIFEST_NAME, describe


def test_onnx_file_is_a_source_without_an_engine(tmp_path: Path) -> None:
    found = file_source(write_graph(tmp_path / "m.onnx"))
    assert (found.name, found.engine, found.manifest) == ("m", None, None)


def test_changed_engine_is_refused(source: ModelSource, tmp_path: Path) -> None:
    assert source.engine is not None
    for path in source.engine.parent.glob(f"{source.engine.name}*"):
        shutil.copy(path, tmp_path)
    copy = tmp_path / source.engine.name
    assert file_source(copy).manifest == source.manifest
    copy.write_bytes(copy.read_bytes() + b"x")
    with pytest.raises(EngineLoadError, match="differs from its manifest"):
        file_source(copy)


def test_engine_without_its_onnx_file_is_refused(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "m.onnx")
    artifact = build_engine(graph, BuildSpec(backend="onnxruntime"))
    write_graph(graph, seed=1)
    with pytest.raises(ConfigError, match="is gone or has changed"):
        file_source(artifact.path)


def write_run(folder: Path, *, passed: bool = True) -> Path:
    """Write what a package takes from a run's outputs."""
    for name in ("onnx", "engines", "evaluation", "ptq"):
        (folder / name).mkdir(parents=True)
    graph = write_graph(folder / "onnx" / "qat.onnx")
    build_engine(graph, BuildSpec(backend="onnxruntime"), output=folder / "engines" / "qat.engine")
    check = {"passed": passed, "message": "outputs differ by 3"}
    (folder / "evaluation" / "evaluation.json").write_text(
        json.dumps({"version": 1, "infrastructure_check": check})
    )
    settings = {"quantization": {"calibrator": "mse"}}
    manifest = describe(folder / "ptq", step="quantize_model", settings=settings)
    (folder / "ptq" / MANIFEST_NAME).write_text(json.dumps(manifest.to_dict()))
    return folder


def folders(artifacts: Path) -> ReportFolders:
    names = ("dataset", "baseline", "ptq", "qat", "onnx", "engines", "evaluation")
    return ReportFolders(**{name: artifacts / name for name in names})


def test_run_gives_engine_card_and_settings(tmp_path: Path) -> None:
    artifacts = write_run(tmp_path)
    found = run_source("my digits", folders(artifacts), "# Card\n")
    assert found.name == "my-digits"
    assert found.engine == artifacts / "engines" / "qat.engine"
    assert found.graph == artifacts / "onnx" / "qat.onnx"
    assert found.card == "# Card\n"
    assert found.quantization == {"calibrator": "mse"}


def test_run_with_a_failed_check_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="failed its check: outputs differ by 3"):
        run_source("digits", folders(write_run(tmp_path, passed=False)), "")
