"""``qatline predict``: the same outputs from every kind of file, and images in place of arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from PIL import Image
from typer.testing import CliRunner

import qat_lib
from qat_lib.engines import BuildSpec, build_engine
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
COUNT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float classifier as Keras file, ONNX file and engine; images as files and as inputs."""
    path = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6, 5, 3), name="image")
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(inputs))
    model = keras.Model(inputs, layers.Dense(3)(x), name="small")
    model.save(path / "m.keras")
    form = qat_lib.Preprocessing(image_shape=(6, 5, 3), mean=(0.5,), std=(0.25,))
    metadata = {"classes": ["cat", "dog", "[b]"]}
    qat_lib.export_onnx(
        model, path / "m.onnx", target="onnxruntime", preprocessing=form, metadata=metadata
    )
    build_engine(path / "m.onnx", BuildSpec(backend="onnxruntime", max_batch_size=7))
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 6, 5, 3)).astype(np.uint8)
    (path / "images").mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image).save(path / "images" / f"{index:02}.png")
    np.save(path / "x.npy", form.apply(images))
    np.save(path / "expected.npy", np.asarray(model(form.apply(images))))
    return path


def predict(folder: Path, *arguments: str) -> Any:
    done = runner.invoke(app, ["predict", *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("data", ["x.npy", "images"])
@pytest.mark.parametrize("model", ["m.keras", "m.onnx", "m.engine"])
def test_predict_gives_the_outputs(model: str, data: str, folder: Path, tmp_path: Path) -> None:
    arguments = [str(folder / model), str(folder / data), "-o", str(tmp_path / "y.npz"), "--json"]
    if (model, data) == ("m.keras", "images"):
        done = runner.invoke(app, ["predict", *arguments])
        assert done.exit_code == 1
        assert "a Keras file records no preprocessing" in done.stderr
        assert not (tmp_path / "y.npz").exists()
        return
    found = json.loads(predict(folder, *arguments))
    expected = np.load(folder / "expected.npy")
    with np.load(tmp_path / "y.npz") as written:
        (values,) = written.values()
    np.testing.assert_allclose(values, expected, atol=1e-5)
    names = [f"{index:02}.png" if data == "images" else str(index) for index in range(COUNT)]
    assert [row["sample"] for row in found["predictions"]] == names
    classes = ["0", "1", "2"] if model == "m.keras" else ["cat", "dog", "[b]"]
    labels = [classes[index] for index in expected.argmax(axis=1)]
    assert [row["class"] for row in found["predictions"]] == labels
    chances = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    shown = [row["probability"] for row in found["predictions"]]
    np.testing.assert_allclose(shown, chances.max(axis=1), atol=1e-5)


def test_predict_shows_the_first_samples(folder: Path) -> None:
    shown = predict(folder, str(folder / "m.engine"), str(folder / "images"))
    assert "00.png" in shown
    assert "[b]" in shown
    assert f"... and {COUNT - 20} more: see --json" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_predict_shows_outputs_of_other_models(tmp_path: Path) -> None:
    left, right = keras.Input((3,), name="left"), keras.Input((2,), name="right")
    x = layers.Concatenate()([left, right])
    model = keras.Model([left, right], [layers.Dense(1, name="a")(x), layers.Dense(4, name="b")(x)])
    model.save(tmp_path / "m.keras")
    np.savez(tmp_path / "x.npz", left=np.ones((5, 3)), right=np.ones((5, 2)))
    shown = predict(tmp_path, str(tmp_path / "m.keras"), str(tmp_path / "x.npz"))
    assert "5 x 1" in shown
    assert "5 x 4" in shown


def test_predict_refuses_images_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "large.png")
    done = runner.invoke(app, ["predict", str(folder / "m.engine"), str(tmp_path / "large.png")])
    assert done.exit_code == 1
    assert "Received (9, 9, 3)" in done.stderr
    done = runner.invoke(app, ["predict", str(folder / "m.engine"), str(tmp_path / "none.png")])
    assert done.exit_code == 1
    assert "can't be read" in done.stderr


def test_predict_takes_open_sizes_from_the_data(tmp_path: Path) -> None:
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, layers.Dense(2, name="y")(layers.GRU(3)(x)))
    path = tmp_path / "m.onnx"
    qat_lib.export_onnx(model, path, target="onnxruntime")
    values = np.random.default_rng(0).normal(size=(5, 9, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "x.npz", x=values)
    for name in ("x.npy", "x.npz"):
        predict(tmp_path, str(path), str(tmp_path / name), "-o", str(tmp_path / "y.npz"))
        with np.load(tmp_path / "y.npz") as outputs:
            np.testing.assert_allclose(outputs["y"], model(values), atol=1e-5)
