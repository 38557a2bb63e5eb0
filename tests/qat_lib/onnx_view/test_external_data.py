"""External weights of an ONNX file: allowed locations and completeness."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto

from qat_lib.errors import ExportError
from qat_lib.onnx_view.external_data import check_external_data


def tensor(
    location: str | None = "data.bin",
    dims: tuple[int, ...] = (2, 3),
    kind: int = TensorProto.FLOAT,
    **entries: str,
) -> TensorProto:
    made = TensorProto(name="w", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    if location is not None:
        entries["location"] = location
    for key, value in entries.items():
        made.external_data.add(key=key, value=value)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's path with 24-byte files beside it and below."""
    folder = tmp_path / "models"
    (folder / "below").mkdir(parents=True)
    (folder / "data.bin").write_bytes(bytes(24))
    (folder / "below" / "data.bin").write_bytes(bytes(24))
    (tmp_path / "secret.bin").write_bytes(bytes(24))
    return folder / "model.onnx"


def problem(path: Path, *tensors: TensorProto) -> str:
    """Return the message about tensors, empty where they are all there."""
    try:
        check_external_data(path, tensors)
    except ExportError as error:
        text = str(error)
    else:
        return ""
    assert text.startswith(f"Expected the external data of {path} ")
    assert "ensor 'w' " in text
    return text


@pytest.mark.parametrize(
    "fits",
    [
        tensor(),
        tensor("below/data.bin"),
        tensor("below/../data.bin"),
        tensor(offset="0", length="24"),
        tensor(dims=(5,), offset="4"),
        tensor(dims=(5,), offset="4", length="20"),
        tensor(dims=(), offset="20"),
        tensor(dims=(0, 9), offset="24"),
        tensor(dims=(24,), kind=TensorProto.INT8),
        tensor(dims=(6,), offset="", length=""),
        tensor(dims=(99,), kind=TensorProto.INT4, length="24"),
        tensor(dims=(99,), kind=TensorProto.INT4, offset="24"),
        tensor(dims=(99,), kind=123, length="24"),
        tensor(dims=(-99,), length="24"),
        tensor(dims=(-1,)),
        tensor(dims=(2,), length="24"),
    ],
)
def test_check_external_data_takes_what_is_there(model: Path, fits: TensorProto) -> None:
    assert problem(model, fits) == ""


@pytest.mark.parametrize(
    "short",
    [
        tensor(dims=(7,)),
        tensor(dims=(25,), kind=TensorProto.INT8),
        tensor(dims=(4, 2)),
        tensor(offset="1"),
        tensor(offset="-1"),
        tensor(length="25"),
        tensor(length="23"),
        tensor(dims=(5,), offset="4", length="21"),
        tensor(dims=(5,), offset="5", length="20"),
        tensor(dims=(99,), kind=TensorProto.INT4, length="25"),
        tensor(dims=(99,), kind=TensorProto.INT4, offset="25"),
        tensor(dims=(99,), kind=TensorProto.INT4, length="-1"),
        tensor(offset="four"),
        tensor(length="many"),
    ],
)
def test_check_external_data_refuses_what_is_not_whole(model: Path, short: TensorProto) -> None:
    found = problem(model, tensor(), short)
    assert "to be whole" in found
    assert "'data.bin' has 24 and" in found


def test_check_external_data_says_how_much_is_needed(model: Path) -> None:
    assert "needs 4,000 bytes from byte 0 on" in problem(model, tensor(dims=(10, 100)))
    assert "needs 4,000 bytes from byte 8 on" in problem(model, tensor(dims=(10, 100), offset="8"))
    assert "needs 2,500 bytes from byte 0 on" in problem(
        model, tensor(kind=TensorProto.INT4, length="2500")
    )
    assert f"from byte {'7' * 20} on" in problem(model, tensor(offset="7" * 30))


@pytest.mark.parametrize("location", ["none.bin", "below/none.bin", "data.bin/none.bin"])
def test_check_external_data_names_missing_file(model: Path, location: str) -> None:
    assert f"lies in {location!r}, which does not exist" in problem(
        model, tensor(), tensor(location)
    )


@pytest.mark.parametrize(
    "location",
    ["", None, "/etc/passwd", "../secret.bin", "a/../../secret.bin", "below", "data\0.bin"],
)
def test_check_external_data_stays_beside_the_model(model: Path, location: str | None) -> None:
    assert f"which is not a file inside {model.parent}" in problem(model, tensor(location))


@pytest.mark.parametrize("length", [300, 5000])
def test_check_external_data_refuses_impossible_name(model: Path, length: int) -> None:
    found = problem(model, tensor("n" * length))
    assert f"lies in {'n' * 200!r}, which can't be opened (File name too long)" in found


def test_check_external_data_follows_no_outward_link(model: Path) -> None:
    (model.parent / "out.bin").symlink_to(model.parent.parent / "secret.bin")
    (model.parent / "in.bin").symlink_to("data.bin")
    (model.parent / "circle.bin").symlink_to("circle.bin")
    assert problem(model, tensor("in.bin")) == ""
    assert "not a file inside" in problem(model, tensor("out.bin"))
    assert "not a file inside" in problem(model, tensor("circle.bin"))


def test_check_external_data_leaves_tensors_with_data_inside_alone(model: Path) -> None:
    inside = TensorProto(name="inside", data_type=TensorProto.FLOAT, dims=[99])
    assert problem(model, inside) == ""
    assert "does not exist" in problem(model, inside, tensor("none.bin"))
