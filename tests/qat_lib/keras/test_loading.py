"""load_model: messages for non-model files and oversized models."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib import load_model
from qat_lib.errors import CalibrationError, ConfigError, UnsupportedModelError
from qat_lib.keras.loading import functional_model
from qat_lib.models.weights import load_weights

Edit = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a convolution and a Dense layer of 2 units."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    x = keras.Input((8, 8, 3))
    y = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, name="conv")(x))
    keras.Model(x, keras.layers.Dense(2, name="logits")(y), name="small").save(path)
    return path


def edited(saved: Path, path: Path, edits: dict[str, Edit]) -> Path:
    """Write a copy of an archive with some members changed, or added."""
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, "w") as target:
        members = {name: source.read(name) for name in source.namelist()}
        for name, edit in edits.items():
            members[name] = edit(members.get(name, b""))
        for name, content in members.items():
            target.writestr(name, content)
    return path


def replaced(old: bytes, new: bytes) -> Edit:
    def edit(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new)

    return edit


def with_hdf5(change: Callable[[h5py.File], object]) -> Edit:
    def edit(content: bytes) -> bytes:
        stream = io.BytesIO(content)
        with h5py.File(stream, "r+") as file:
            change(file)
        return stream.getvalue()

    return edit


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_load_model_refuses_damaged_or_foreign_files(
    content: bytes | None, saved: Path, tmp_path: Path
) -> None:
    assert load_model(saved).count_params() == 402
    path = tmp_path / "model.keras"
    path.write_bytes(saved.read_bytes()[:-200] if content is None else content)
    with pytest.raises(UnsupportedModelError, match="only a part of one"):
        load_model(path)


def test_load_model_names_what_is_no_file(saved: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.keras")
    (tmp_path / "zero.keras").symlink_to("/dev/zero")
    (tmp_path / "folder.keras").mkdir()
    (tmp_path / "model.h5").write_bytes(saved.read_bytes())
    for name, message in (
        ("none.keras", "There is no model file"),
        ("pipe.keras", "it is a pipe"),
        ("zero.keras", "it is a device"),
        ("folder.keras", "it is a folder"),
        ("model.h5", "Expected a .keras file"),
    ):
        with pytest.raises(UnsupportedModelError, match=message):
            load_model(tmp_path / name)


CONFIG, WEIGHTS = "config.json", "model.weights.h5"
UNITS = b'"units": 2,'


@pytest.mark.parametrize(
    ("member", "edit", "message"),
    [
        (
            CONFIG,
            replaced(UNITS, b'"units": ' + b"9" * 5_000 + b","),
            "5000 digits",
        ),
        (
            CONFIG,
            replaced(UNITS, b'"units": -2,'),
            "expected a positive integer. Received: units=-2",
        ),
        (CONFIG, replaced(b'"Dense"', b'"Dence"'), "keras.layers.Dence"),
        (CONFIG, lambda c: c + b" " * (17 << 20), "config.json has more than 16,777,216 bytes"),
        (CONFIG, lambda _: b"[" * 100_000, "recursion"),
        (CONFIG, lambda _: b"\xff", "can't decode byte 0xff"),
        (CONFIG, lambda _: b"{}", "can't be loaded"),
        (WEIGHTS, lambda w: w[: len(w) // 2], "its weights are damaged .*truncated"),
        (WEIGHTS, lambda _: b"", "its weights are damaged"),
        (
            WEIGHTS,
            with_hdf5(
                lambda f: f.create_dataset("x", shape=(10**10,), chunks=(10**6,), dtype="f4")
            ),
            "unpack to 40,000,001,608, expected at most",
        ),
        (
            WEIGHTS,
            with_hdf5(
                lambda f: f.create_dataset(
                    "x", shape=(1,), maxshape=(None,), chunks=(10**9,), dtype="f4"
                )
            ),
            "unpack to 4,000,001,608",
        ),
        (
            WEIGHTS,
            with_hdf5(
                lambda f: f.create_dataset("x", (9,), "f4", external=[("/etc/passwd", 0, 36)])
            ),
            "lie in another file",
        ),
    ],
)
def test_load_model_checks_what_file_asks_for(
    saved: Path, tmp_path: Path, member: str, edit: Edit, message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(edited(saved, tmp_path / "bad.keras", {member: edit}))


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_load_model_gives_the_whole_reason(saved: Path, tmp_path: Path) -> None:
    path = edited(saved, tmp_path / "bad.keras", {CONFIG: replaced(UNITS, b'"units": 5,')})
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(path)
    assert "variable.shape=(144, 5), Received: value.shape=(144, 2)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_load_model_tells_vocabulary_from_lambda(tmp_path: Path) -> None:
    x = keras.Input((1,), dtype="string")
    keras.Model(x, keras.layers.StringLookup(vocabulary=["a"])(x)).save(tmp_path / "words.keras")
    edit = replaced(b'["a"]', b'"/etc/passwd"')
    path = edited(tmp_path / "words.keras", tmp_path / "file.keras", {CONFIG: edit})
    with pytest.raises(
        UnsupportedModelError, match="loading of a vocabulary file outside of the model"
    ) as caught:
        load_model(path)
    assert "Lambda" not in str(caught.value)


def test_load_model_names_a_lambda(tmp_path: Path) -> None:
    x = keras.Input((1,))
    keras.Model(x, keras.layers.Lambda(lambda t: t + 1)(x)).save(tmp_path / "code.keras")
    with pytest.raises(
        UnsupportedModelError, match="Lambda layer, whose code safe mode does not run"
    ):
        load_model(tmp_path / "code.keras")


def test_load_weights_checks_a_file_first(saved: Path, tmp_path: Path) -> None:
    model = load_model(saved)
    model.save_weights(tmp_path / "good.weights.h5")
    load_weights(model, tmp_path / "good.weights.h5")
    load_weights(model, saved)
    with h5py.File(tmp_path / "bomb.weights.h5", "w") as file:
        file.create_dataset("x", shape=(10**10,), chunks=(10**6,), dtype="f4")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    os.mkfifo(tmp_path / "pipe.weights.h5")
    (tmp_path / "x.weights.h5").write_bytes(b"hello")
    for name, message in (
        ("none.npz", "There is no weights file"),
        ("bomb.weights.h5", "unpack to 40,000,000,000"),
        ("objects.npz", "its array 'a' can't be read .*allow_pickle=False"),
        ("pipe.weights.h5", "it is a pipe"),
        ("x.weights.h5", "its weights are damaged"),
        ("x.txt", "Expected a weights file"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_weights(model, tmp_path / name)


@pytest.mark.parametrize("load", [qat_lib.load_model, keras.models.load_model])
def test_files_of_version_0_1_0_load(load: Any) -> None:
    # The file names classes by their modules of that version.
    saved = Path(__file__).parent / "saved" / "version_0_1_0"
    with np.load(saved.with_suffix(".npz")) as data:
        x, expected = data["x"], data["y"]
    model = load(saved.with_suffix(".keras"))
    assert len(qat_lib.model_quantizers(model)) == 8
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-5)


class Scaled(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        parts = x.values() if isinstance(x, dict) else [x]
        return sum(self.dense(part) for part in parts)


@pytest.mark.parametrize("form", ["array", "float64", "dict", "dataset", "batches"])
def test_subclassed_model_gets_inputs_like_the_data(form: str) -> None:
    x = np.ones((4, 3), np.float64 if form == "float64" else np.float32)
    forms: dict[str, Any] = {
        "dict": {"a": x, "b": x},
        "dataset": tf.data.Dataset.from_tensor_slices((x, np.ones(4))).batch(2),
        "batches": [x, x],
    }
    found = functional_model(Scaled(), forms.get(form, x))
    assert len(found.inputs) == (2 if form == "dict" else 1)
    assert {(each.shape, each.dtype) for each in found.inputs} == {((None, 3), "float32")}


def test_subclassed_model_needs_data() -> None:
    with pytest.raises(CalibrationError, match="at least one sample"):
        functional_model(Scaled(), [])


def test_models_with_a_graph_and_their_files_are_opened_without_data(saved: Path) -> None:
    model = load_model(saved)
    assert functional_model(model, None) is model
    assert functional_model(str(saved), None).name == model.name
