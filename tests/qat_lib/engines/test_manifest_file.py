"""Allowed manifest contents; others are named before the engine's library is called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qat_lib.engines import BuildSpec, build_engine, load_engine, manifest_path, read_manifest
from qat_lib.engines import manifest_file as module
from qat_lib.engines.manifest import EngineManifest, seal
from qat_lib.errors import EngineLoadError

Values = dict[str, Any]


@pytest.fixture(scope="module")
def built_once(int8_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("engine") / "model.engine"
    return build_engine(
        int8_onnx, BuildSpec(backend="onnxruntime", max_batch_size=8), output=output
    ).path


@pytest.fixture
def engine(built_once: Path, tmp_path: Path) -> Path:
    """A copy of engine and manifest that a test may damage."""
    for path in (built_once, manifest_path(built_once)):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path / built_once.name


def write_sealed(engine: Path, edit: Callable[[Values], None]) -> None:
    values = json.loads(manifest_path(engine).read_text())
    edit(values)
    manifest_path(engine).write_text(seal(values))


def set_value(path: str, value: Any) -> Callable[[Values], None]:
    """Return an edit that sets a path such as ``inputs.0.dtype``."""

    def edit(values: Any) -> None:
        *parents, last = path.split(".")
        for part in parents:
            values = values[int(part)] if isinstance(values, list) else values[part]
        values[int(last) if isinstance(values, list) else last] = value

    return edit


def test_manifest_round_trips(engine: Path) -> None:
    manifest = read_manifest(engine)
    assert isinstance(manifest, EngineManifest)
    assert manifest.to_json() == manifest_path(engine).read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "can't be read"),
        ("{", "can't be read"),
        ("[" * 100_000, "can't be read"),
        ("[]", "has format 'list', expected 2"),
        ("null", "has format 'NoneType', expected 2"),
        ('{"format": 99}', "has format 99, expected 2"),
        ('{"format": "2"}', "has format '2', expected 2"),
        ('{"format": 2}', "was changed since it was written"),
    ],
)
def test_broken_manifest_is_named(engine: Path, content: str, message: str) -> None:
    manifest_path(engine).write_text(content)
    with pytest.raises(EngineLoadError, match=message):
        load_engine(engine)


def test_manifest_of_an_older_version_says_rebuild(engine: Path) -> None:
    """Format 1 had no digest."""
    write_sealed(engine, set_value("format", 1))
    with pytest.raises(
        EngineLoadError,
        match=r"has format 1, expected 2\. Build the engine again with this version",
    ):
        load_engine(engine)


@pytest.mark.parametrize(
    "path", ["inputs.0.name", "classes", "device.name", "spec.threads", "created"]
)
def test_one_changed_value_is_noticed(engine: Path, path: str) -> None:
    values = json.loads(manifest_path(engine).read_text())
    set_value(path, "changed")(values)
    manifest_path(engine).write_text(json.dumps(values))
    with pytest.raises(
        EngineLoadError, match="was changed since it was written: its digest differs"
    ):
        load_engine(engine)


def test_layout_of_the_json_does_not_matter(engine: Path) -> None:
    values = json.loads(manifest_path(engine).read_text())
    manifest_path(engine).write_text(json.dumps(values, indent=7))
    load_engine(engine).close()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inputs", [], "inputs is empty"),
        ("inputs", {}, "inputs: input should be a valid array"),
        (
            "inputs.0.shape",
            [None, "1", 8, 8],
            r"inputs\.0\.shape\.1: input should be a valid integer",
        ),
        ("inputs.0.shape", [None, 1, 8, -8], "negative dimension"),
        ("inputs.0.name", "image", r"spec\.shapes has a profile for each of .*\['image'\]"),
        ("inputs.0.dtype", "object", "no NumPy number"),
        ("inputs.0.dtype", "float31", "no NumPy number"),
        ("outputs", [], "outputs is empty"),
        ("outputs", None, "outputs: input should be a valid array. Received: None"),
        (
            "backend",
            "tpu",
            "for the backend 'tpu', expected one of tensorrt, openvino, onnxruntime",
        ),
        ("backend", 3, "backend: input should be a valid string. Received: 3"),
        ("bytes", "100", "bytes: input should be a valid integer"),
        ("bytes", True, "bytes: input should be a valid integer"),
        ("device", {}, "device.architecture is a str"),
        ("device.flags", "avx2", "device.flags is a list"),
        ("precision", {"int8_layers": 1}, "precision.weighted_layers: field required"),
        ("source", {}, "source has no path"),
        ("quantized", "yes", "quantized: input should be a valid boolean"),
        ("classes", "0123", "classes: input should be a valid array"),
        ("spec", {}, r"spec\.backend: field required"),
        ("spec.shapes", ["input"], r"spec\.shapes: input should be an object"),
        (
            "spec.shapes",
            {"input": "1x1x8x8,4x...", "mask": "1,2"},
            "spec is no build spec: A profile is one shape",
        ),
        ("spec.shapes", {"input": 3}, r"spec\.shapes\.input: input should be a valid string"),
        ("spec.threads", "two", r"spec\.threads: input should be a valid integer"),
        ("spec.threads", -2, "spec is no build spec: threads is 0"),
        ("spec.threads", 1.5, r"spec\.threads: input should be a valid integer"),
        ("spec.unknown", 1, r"spec\.unknown: extra inputs are not permitted"),
        ("nodes", {"a": 1}, r"nodes\.a: input should be a valid string"),
        (
            "build_seconds",
            "x" * 10_000,
            r"build_seconds: input should be a valid number\. Received: 'x+…",
        ),
    ],
)
def test_wrong_value_is_named(engine: Path, path: str, value: Any, message: str) -> None:
    write_sealed(engine, set_value(path, value))
    with pytest.raises(EngineLoadError, match=message) as caught:
        load_engine(engine)
    assert "build the engine again" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("missing", ["inputs", "digest", "spec", "device", "created"])
def test_missing_value_is_named(engine: Path, missing: str) -> None:
    write_sealed(engine, lambda values: values.pop(missing))
    with pytest.raises(EngineLoadError, match=f"{missing}: field required"):
        load_engine(engine)


def test_manifest_is_bounded(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with pytest.raises(EngineLoadError, match="expected at most 1,000"):
        load_engine(engine)


def rename_output(values: Values) -> None:
    values["outputs"][0]["name"] = "scores"


def widen_output(values: Values) -> None:
    values["outputs"][0]["shape"] = [None, 11]


def second_output(values: Values) -> None:
    values["outputs"].append({"name": "other", "shape": [None, 10], "dtype": "float32"})


def narrow_input(values: Values) -> None:
    values["inputs"][0]["dtype"] = "float16"


def shrink_input(values: Values) -> None:
    values["inputs"][0]["shape"] = [None, 1, 64]


def widen_image(values: Values) -> None:
    values["inputs"][0]["shape"] = [None, 1, 9, 9]
    values["spec"]["shapes"]["input"] = "1x1x9x9,8x1x9x9,8x1x9x9"


@pytest.mark.parametrize(
    "edit",
    [
        rename_output,
        widen_output,
        second_output,
        narrow_input,
        shrink_input,
        widen_image,
    ],
)
def test_manifest_of_another_engine_is_refused(
    engine_copy: Path, edit: Callable[[Values], None]
) -> None:
    """It is valid, but differs from the library's view of the engine."""
    write_sealed(engine_copy, edit)
    with pytest.raises(EngineLoadError, match="The manifest does not belong to the engine"):
        load_engine(engine_copy)


# ---------------------------------------------------------------------- no files
def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.mkdir()


def make_device_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [make_pipe, make_directory, make_device_link, make_loop])
@pytest.mark.parametrize("which", ["engine", "manifest"])
def test_what_is_no_file_is_refused_at_once(
    engine: Path, make: Callable[[Path], None], which: str
) -> None:
    path = engine if which == "engine" else manifest_path(engine)
    path.unlink()
    make(path)
    with pytest.raises(EngineLoadError, match=r"expected a regular file|[Ss]ymbolic links"):
        load_engine(engine)


def test_engine_below_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineLoadError, match="no engine file"):
        load_engine(tmp_path / "pipe" / "model.engine")


def test_engine_larger_than_its_manifest_says_is_not_read(engine: Path) -> None:
    os.truncate(engine, 2**40)  # a hole: takes no space
    with pytest.raises(EngineLoadError, match="its manifest says"):
        load_engine(engine)


def test_command_line_ends_with_an_error(engine: Path) -> None:
    write_sealed(engine, set_value("inputs", []))
    command = [sys.executable, "-m", "qat_lib.engines.check", str(engine), "--onnx", str(engine)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "inputs is empty" in json.loads(done.stdout)["message"]
