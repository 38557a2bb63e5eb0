"""Packages for each server: their files, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from served_classifier import FORM, write_graph

from qat_lib.engines import load_engine
from qat_lib.errors import ConfigError, StorageError
from qat_lib.preprocessing import read_preprocessing
from qatline.components.client.client import prepared
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.package import read_package
from qatline.components.serving.sources import ModelSource, file_source


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("target", ["plain", "triton", "ovms", "kserve"])
def test_same_source_gives_the_same_bytes(source: ModelSource, tmp_path: Path, target: Any) -> None:
    options = PackageOptions(target=target, name="digits", storage_uri="s3://models/digits")
    for name in ("a", "b"):
        assemble_package(source, tmp_path / name, options)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    package = read_package(tmp_path / "a")
    assert package.model.name == "digits"
    assert set(contents(tmp_path / "a")) == {*package.files, "package.json"}
    assert str(source.graph.parent) not in (tmp_path / "a" / "package.json").read_text()


def test_plain_package_runs_in_another_place(
    source: ModelSource, samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    package = assemble_package(source, tmp_path / "a", PackageOptions())
    moved = (tmp_path / "a").rename(tmp_path / "moved")
    x = np.moveaxis(read_preprocessing(FORM).apply(samples), -1, 1)
    with load_engine(moved / package.file) as engine:
        found = engine.infer_many(np.ascontiguousarray(x))["logits"]
    np.testing.assert_array_equal(found, logits)
    manifest = json.loads((moved / f"{package.file}.json").read_text())
    assert manifest["source"]["path"] == "model.onnx"


@pytest.mark.parametrize("server", ["triton", "ovms"])
def test_models_of_other_servers_give_the_outputs(
    server: Any, source: ModelSource, samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    """Also on CPUs whose INT8 kernels add two products in 16 bits."""
    backend: Any = {"triton": "onnxruntime", "ovms": "openvino"}[server]
    options = PackageOptions(target=server, backend=backend)
    package = assemble_package(source, tmp_path / "a", options)
    facts = json.loads((package.path / "package.json").read_text())["model"]
    x = prepared(facts, {"input": samples})["input"]
    file = str(package.path / package.file)
    if server == "triton":
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        found = session.run(None, {"input": x})[0]
    else:
        import openvino

        compiled = openvino.Core().compile_model(file, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled({"input": x})["logits"]
    np.testing.assert_allclose(found, logits, atol=0.02 * np.abs(logits).max())


def test_ovms_config_names_the_folder(source: ModelSource, tmp_path: Path) -> None:
    assemble_package(source, tmp_path / "a", PackageOptions(target="ovms", name="digits"))
    config = json.loads((tmp_path / "a" / "models" / "config.json").read_text())
    (entry,) = config["model_config_list"]
    assert entry["config"]["name"] == "digits"
    assert entry["config"]["base_path"] == "/models/digits"
    assert (tmp_path / "a" / "models" / "digits" / "1" / "model.xml").is_file()


def test_client_reads_answers_without_qatline(
    source: ModelSource, samples: np.ndarray, logits: np.ndarray, tmp_path: Path
) -> None:
    """In a process that finds neither qatline nor TensorFlow."""
    assemble_package(source, tmp_path / "a", PackageOptions())
    np.savez(tmp_path / "x.npz", samples=samples, logits=logits)
    script = """
import json, sys
import numpy as np
sys.modules.update({name: None for name in ("qatline", "qat_lib", "tensorflow", "keras")})
sys.path.insert(0, "a")
from qatline_client.client import prepared
from qatline_client.decoding import answers
facts = json.load(open("a/package.json"))["model"]
held = np.load("x.npz")
np.save("prepared.npy", prepared(facts, {"input": held["samples"]})["input"])
print(json.dumps(answers(facts["decoding"], {"logits": held["logits"]})))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    names = [each["class"] for each in json.loads(done.stdout)]
    classes = json.loads((tmp_path / "a" / "package.json").read_text())["model"]["classes"]
    assert names == [classes[index] for index in logits.argmax(axis=1)]
    expected = np.moveaxis(read_preprocessing(FORM).apply(samples), -1, 1)
    np.testing.assert_array_equal(np.load(tmp_path / "prepared.npy"), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "ovms", "backend": "onnxruntime"}, "OpenVINO Model Server runs openvino"),
        ({"target": "ovms", "raw": True}, "Only packages for Triton take --raw"),
        ({"backend": "python"}, "Only Triton has a backend python"),
        ({"target": "triton", "backend": "tensorrt"}, "Expected an engine of TensorRT"),
        ({"backend": "onnxruntime"}, "Expected the backend of the engine, openvino"),
        ({"name": "a/b"}, "Expected a name of letters"),
        ({"target": "kserve"}, "Expected the address that KServe loads the package from"),
        ({"target": "kserve", "storage_uri": "s3://b/m", "name": "a" * 60}, "at most 50"),
        ({"target": "kserve", "storage_uri": "s3://b/m", "name": "3d"}, "starts with a letter"),
    ],
)
def test_what_will_not_run_is_refused(
    options: dict[str, Any], message: str, source: ModelSource, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        assemble_package(source, tmp_path / "a", PackageOptions(**options))
    assert list(tmp_path.iterdir()) == []


def test_package_needs_a_new_folder(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Expected a new folder for the package"):
        assemble_package(source, tmp_path, PackageOptions())


def test_raw_needs_a_decoding(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "m.onnx", decoding=False)
    with pytest.raises(ConfigError, match="records its preprocessing and decoding"):
        assemble_package(
            file_source(graph), tmp_path / "a", PackageOptions(target="triton", raw=True)
        )


def test_weights_outside_of_the_file_are_refused(tmp_path: Path) -> None:
    import onnx

    graph = write_graph(tmp_path / "m.onnx")
    model = onnx.load(str(graph))
    onnx.save(model, str(graph), save_as_external_data=True, size_threshold=0, location="w.data")
    with pytest.raises(ConfigError, match="Expected an ONNX file with its weights inside"):
        assemble_package(file_source(graph), tmp_path / "a", PackageOptions())


def test_card_of_the_source_is_in_the_package(source: ModelSource, tmp_path: Path) -> None:
    package = assemble_package(replace(source, card="# Mine\n"), tmp_path / "a", PackageOptions())
    assert (package.path / "MODEL_CARD.md").read_text() == "# Mine\n"
