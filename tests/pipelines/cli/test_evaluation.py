"""``qatline evaluate``: equal accuracy for Keras model, ONNX file and engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import qat_lib
from qat_lib.engines import BuildSpec, build_engine
from qat_lib.preprocessing import Preprocessing
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
X = np.random.default_rng(0).normal(size=(40, 8, 8, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seven-class network as model, ONNX file and engine, with data.

    It knows 3/4 of the data.
    """
    path = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, name="conv")(image))
    model = keras.Model(image, keras.layers.Dense(7, name="logits")(x), name="small")
    model.save(path / "m.keras")
    outputs = model.predict(X, verbose=0)
    labels = outputs.argmax(axis=1)
    labels[:10] = outputs[:10].argmin(axis=1)
    np.savez(path / "d.npz", x=X, y=labels)
    np.save(path / "x.npy", X)
    np.save(path / "y.npy", labels)
    np.savez(path / "many.npz", x=X, y=np.arange(40) % 8)
    np.savez(path / "small.npz", x=X[:, :4], y=labels)
    qat_lib.export_onnx(model, path / "m.onnx")
    spec = BuildSpec(backend="onnxruntime", max_batch_size=16)
    build_engine(path / "m.onnx", spec, output=path / "m.engine", verify=False)
    qat_lib.export_onnx(model, path / "nchw.onnx", channels_first_input=True)
    two = keras.Model([image, keras.Input((2,), name="b")], model(image))
    qat_lib.export_onnx(two, path / "two.onnx")
    return path


def evaluate(folder: Path, model: str, *arguments: str) -> Any:
    return runner.invoke(app, ["evaluate", str(folder / model), *arguments])


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        ("m.keras", "keras"),
        ("m.onnx", "onnxruntime"),
        ("nchw.onnx", "onnxruntime"),
        ("m.engine", "onnxruntime"),
    ],
)
def test_evaluate_gives_one_accuracy_for_each_kind(folder: Path, model: str, backend: str) -> None:
    done = evaluate(folder, model, "--data", str(folder / "d.npz"), "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["backend"] == backend
    assert content["samples"] == 40
    assert content["metrics"] == ["accuracy", "top5", "calibration_error"]
    assert content["quality"]["accuracy"] == 0.75
    assert content["quality"]["top5"] == 0.75
    assert content["latency_ms_p50"] is None


def test_evaluate_reads_npy_files_and_measures_latency(folder: Path) -> None:
    files = ["--data", str(folder / "x.npy"), "--labels", str(folder / "y.npy")]
    done = evaluate(folder, "m.engine", *files, "--latency", "--seconds", "0.02")
    assert done.exit_code == 0, done.stderr
    assert "75.00%" in done.stdout
    assert "top-5 accuracy    75.00%" in done.stdout
    assert "(p50 / p99, batch 1)" in done.stdout


def test_evaluate_shows_no_top5_of_few_classes(tmp_path: Path) -> None:
    flat = keras.Input((4,))
    keras.Model(flat, keras.layers.Dense(5)(flat)).save(tmp_path / "m.keras")
    np.savez(tmp_path / "d.npz", x=np.ones((3, 4)), y=np.arange(3))
    done = evaluate(tmp_path, "m.keras", "--data", str(tmp_path / "d.npz"))
    assert done.exit_code == 0, done.stderr
    assert "top-5" not in done.stdout


def test_evaluate_feeds_raw_images_to_preprocessing_engine(folder: Path, tmp_path: Path) -> None:
    model = qat_lib.load_model(folder / "m.keras")
    pixels = np.random.default_rng(1).integers(0, 256, (12, 8, 8, 3), np.uint8)
    preprocessing = Preprocessing(image_shape=(8, 8, 3), mean=(0.5,), std=(0.25,))
    labels = model.predict(preprocessing.apply(pixels), verbose=0).argmax(axis=1)
    np.savez(tmp_path / "d.npz", x=pixels, y=labels)
    path = tmp_path / "raw.onnx"
    qat_lib.export_onnx(model, path, preprocessing=preprocessing, embed_preprocessing=True)
    done = evaluate(tmp_path, "raw.onnx", "--data", str(tmp_path / "d.npz"), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["quality"]["accuracy"] == 1.0


@pytest.mark.parametrize("suffix", ["keras", "onnx", "engine"])
def test_evaluate_refuses_models_that_answer_nan(tmp_path: Path, suffix: str) -> None:
    """NaN would count as class 0: an accuracy of 100 % on these labels."""
    image = keras.Input((8, 8, 3), name="image")
    model = keras.Model(image, keras.layers.Dense(7, name="logits")(keras.layers.Flatten()(image)))
    kernel, bias = model.layers[-1].get_weights()
    model.layers[-1].set_weights([kernel * np.nan, bias])
    model.save(tmp_path / "m.keras")
    if suffix != "keras":
        qat_lib.export_onnx(model, tmp_path / "m.onnx")
    if suffix == "engine":
        spec = BuildSpec(backend="onnxruntime", max_batch_size=16)
        build_engine(tmp_path / "m.onnx", spec, output=tmp_path / "m.engine", verify=False)
    np.savez(tmp_path / "d.npz", x=X, y=np.zeros(len(X), np.int64))
    done = evaluate(tmp_path, f"m.{suffix}", "--data", str(tmp_path / "d.npz"))
    assert done.exit_code == 1
    size = 16 if suffix == "engine" else 32
    assert f"Its outputs are NaN for {size} of {size} samples of a batch" in " ".join(
        done.stderr.split()
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("model", "arguments", "code", "message"),
    [
        ("m.keras", ["--data", "d.npz", "--latency"], 2, "Expected no --latency"),
        ("none.keras", ["--data", "d.npz"], 1, "There is no model file"),
        ("none.onnx", ["--data", "d.npz"], 1, "none.onnx"),
        ("none.engine", ["--data", "d.npz"], 1, "There is no engine file"),
        ("m.engine", ["--data", "none.npz"], 1, "does not exist"),
        ("m.engine", ["--data", "many.npz"], 1, "expected 0 to 6 (7 classes), received 7"),
        ("m.keras", ["--data", "many.npz"], 1, "expected 0 to 6 (7 classes), received 7"),
        ("m.engine", ["--data", "small.npz"], 1, "The engine takes inputs of shape (8, 8, 3)"),
        ("m.keras", ["--data", "small.npz"], 1, "Expected model inputs of shape nx8x8x3"),
        (
            "two.onnx",
            ["--data", "d.npz"],
            1,
            "The engine has 2 inputs (image, b), the data has one",
        ),
        ("m.keras", ["--data", "d.npz", "--task", "regresion"], 2, "task.name: expected classific"),
        (
            "m.keras",
            ["--data", "d.npz", "--task", "regression"],
            1,
            "gives outputs of shape (7,), but the targets have (1,)",
        ),
    ],
)
def test_evaluate_of_bad_input_ends_with_one_message(
    folder: Path, model: str, arguments: list[str], code: int, message: str
) -> None:
    given = [str(folder / text) if "." in text else text for text in arguments]
    done = evaluate(folder, model, *given)
    assert done.exit_code == code
    assert message in " ".join(done.stderr.split())
    assert "bug" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("kind", ["keras", "onnx", "engine"])
def test_evaluate_of_other_tasks(tmp_path: Path, kind: str) -> None:
    """A regression with two inputs, and masks: the metrics are the task's."""
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    value = keras.layers.Dense(1, name="value")(keras.layers.Concatenate()([left, right]))
    models = {"two": keras.Model([left, right], value)}
    image = keras.Input((8, 8, 3), name="image")
    models["mask"] = keras.Model(image, keras.layers.Conv2D(3, 1, name="classes")(image))
    generator = np.random.default_rng(0)
    x = {
        name: generator.normal(size=(10, n)).astype(np.float32)
        for name, n in (("left", 4), ("right", 2))
    }
    y = models["two"].predict(x, verbose=0) + 0.25
    np.savez(tmp_path / "two.npz", x_test_left=x["left"], x_test_right=x["right"], y_test=y)
    mask = models["mask"].predict(X[:10], verbose=0).argmax(axis=-1)
    np.savez(tmp_path / "mask.npz", x=X[:10], y=mask)
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
        if kind != "keras":
            qat_lib.export_onnx(model, tmp_path / f"{name}.onnx")
        if kind == "engine":
            spec = BuildSpec(backend="onnxruntime", max_batch_size=4)
            build_engine(tmp_path / f"{name}.onnx", spec, output=tmp_path / f"{name}.engine")
    found = {}
    for name in models:
        done = evaluate(
            tmp_path, f"{name}.{kind}", "--data", str(tmp_path / f"{name}.npz"), "--json"
        )
        assert done.exit_code == 0, done.stderr
        found[name] = json.loads(done.stdout)["quality"]
    assert found["two"]["mae"] == pytest.approx(0.25, abs=1e-5)
    assert found["mask"] == {"mean_iou": 1.0, "pixel_accuracy": 1.0}
