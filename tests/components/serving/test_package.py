"""``package.json``: what a package contains, and what its readers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import ConfigError, DataError
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.package import check_name, read_package
from qatline.components.serving.sources import ModelSource


@pytest.fixture
def folder(source: ModelSource, tmp_path: Path) -> Path:
    return assemble_package(source, tmp_path / "package", PackageOptions(name="digits")).path


def change(folder: Path, **values: Any) -> None:
    file = folder / "package.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_package_describes_the_model(folder: Path) -> None:
    package = read_package(folder)
    assert package.file == "models/digits/1/model.engine"
    model = package.model
    assert (model.task, model.classes[1]) == ("classification", 'one "1"')
    assert model.inputs == (
        {"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8], "layout": "NCHW"},
    )
    assert model.outputs == (
        {"name": "logits", "datatype": "FP32", "shape": [-1, 10], "layout": ""},
    )
    assert package.quantization["int8_layers"] == 1
    assert len(package.origin["onnx_sha256"]) == 64


def test_package_with_a_flipped_byte_is_refused(folder: Path) -> None:
    file = folder / "models" / "digits" / "1" / "model.engine"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        DataError, match=r"differs from its SHA-256 in package\.json: it is damaged"
    ):
        read_package(folder)


def test_package_without_a_file_is_refused(folder: Path) -> None:
    (folder / "MODEL_CARD.md").unlink()
    with pytest.raises(DataError, match=r"lacks MODEL_CARD\.md, which its package\.json lists"):
        read_package(folder)


def test_files_outside_of_the_package_are_refused(folder: Path) -> None:
    change(folder, files={"../secret": "0" * 64})
    (folder.parent / "secret").write_text("x")
    with pytest.raises(DataError, match=r"lacks \.\./secret"):
        read_package(folder)


def test_a_model_has_the_name_of_its_folder(folder: Path) -> None:
    model = json.loads((folder / "package.json").read_text())["model"]
    change(folder, model={**model, "name": "other"})
    with pytest.raises(DataError, match="A model has the name of its folder"):
        read_package(folder)


def test_a_folder_around_a_package_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=f"Did you mean {folder}"):
        read_package(folder.parent)


@pytest.mark.parametrize("values", [{"format": 9}, {"model": {}}, {"model": 3}, {"unknown": 1}])
def test_damaged_descriptions_are_refused(folder: Path, values: dict[str, Any]) -> None:
    change(folder, **values)
    with pytest.raises(DataError, match=r"package\.json"):
        read_package(folder)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "a.", "é", "a" * 200])
def test_names_that_servers_do_not_take_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Expected a name of letters, digits"):
        check_name(name)
