"""``qatline finetune`` and, on what it leaves, ``qatline evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import qat_lib
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
SHORT = ["--epochs", "1", "--batch-size", "16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, its quantized form, and data that it can learn."""
    path = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="relu", name="conv")(image))
    model = keras.Model(image, keras.layers.Dense(2, name="logits")(x), name="small")
    model.save(path / "m.keras")
    x = np.random.default_rng(0).normal(size=(60, 8, 8, 3)).astype(np.float32)
    y = (x.mean(axis=(1, 2, 3)) > 0).astype(np.int64)
    np.savez(path / "d.npz", x=x, y=y)
    np.savez(path / "many.npz", x=x, y=np.arange(60) % 3)
    np.savez(path / "flat.npz", x=x.reshape(60, -1), y=y)
    np.save(path / "x.npy", x)
    np.save(path / "y.npy", y)
    quantized = qat_lib.quantize_model(model)
    qat_lib.calibrate(quantized, x, "max", freeze=True)
    quantized.save(path / "q.keras")
    flat = keras.Input((4,))
    pair = keras.Model(flat, [keras.layers.Dense(2)(flat), keras.layers.Dense(2)(flat)])
    qat_lib.quantize_model(pair).save(path / "two.keras")
    return path


def finetune(folder: Path, model: str, output: Path, *arguments: str) -> Any:
    return runner.invoke(app, ["finetune", str(folder / model), "-o", str(output), *arguments])


def test_finetune_writes_model_and_summary(folder: Path, tmp_path: Path) -> None:
    output, data = tmp_path / "t.keras", str(folder / "d.npz")
    options = ["--epochs", "8", "--learning-rate", "0.01", "--teacher", str(folder / "m.keras")]
    done = finetune(folder, "q.keras", output, "--data", data, *options, "--json")
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert (content["samples"], content["validation_samples"]) == (48, 12)
    assert [epoch["epoch"] for epoch in content["epochs"]] == list(range(9))
    before = qat_lib.load_model(folder / "q.keras").get_weights()
    after = qat_lib.load_model(output).get_weights()
    changed = any(np.any(one != other) for one, other in zip(before, after, strict=True))
    assert changed == (content["kept_epoch"] > 0)


@pytest.mark.matrix
def test_finetune_can_be_repeated_and_reads_npy_files(folder: Path, tmp_path: Path) -> None:
    files = ["--data", str(folder / "x.npy"), "--labels", str(folder / "y.npy")]
    losses = []
    for _ in range(2):
        done = finetune(folder, "q.keras", tmp_path / "t.keras", *files, *SHORT, "--json")
        assert done.exit_code == 0, done.stderr
        losses.append(json.loads(done.stdout)["epochs"][1]["loss"])
    assert losses[0] == losses[1]


def test_finetune_shows_a_table(folder: Path, tmp_path: Path) -> None:
    done = finetune(
        folder, "q.keras", tmp_path / "t.keras", "--data", str(folder / "d.npz"), *SHORT
    )
    assert done.exit_code == 0, done.stderr
    assert "val. accuracy" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()[:-1]) <= 80


@pytest.mark.parametrize(
    ("model", "arguments", "code", "message"),
    [
        ("m.keras", ["--data", "d.npz"], 1, "Expected a quantized model. small has no quantizers"),
        ("two.keras", ["--data", "d.npz"], 1, "Expected model inputs of shape nx4"),
        ("none.keras", ["--data", "d.npz"], 1, "There is no model file"),
        ("q.keras", ["--data", "none.npz"], 1, "does not exist"),
        ("q.keras", ["--data", "x.npy"], 1, "Expected --labels"),
        ("q.keras", ["--data", "many.npz"], 1, "expected 0 to 1 (2 classes), received 2"),
        ("q.keras", ["--data", "flat.npz"], 1, "Expected model inputs of shape nx8x8x3"),
        ("q.keras", ["--data", "d.npz", "--learning-rate", "0"], 2, "learning_rate: expected"),
        ("q.keras", ["--data", "d.npz", "--learning-rate", "nan"], 2, "--learning-rate"),
    ],
)
def test_finetune_of_bad_input_ends_with_one_message(
    folder: Path, tmp_path: Path, model: str, arguments: list[str], code: int, message: str
) -> None:
    given = [str(folder / text) if "." in text else text for text in arguments]
    done = finetune(folder, model, tmp_path / "t.keras", *given)
    assert done.exit_code == code
    assert message in done.stderr
    assert "bug" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_finetune_writes_keras_files_alone(folder: Path, tmp_path: Path) -> None:
    data = ["--data", str(folder / "d.npz")]
    done = finetune(folder, "q.keras", tmp_path / "t.h5", *data)
    assert (done.exit_code, "must end with .keras" in done.stderr) == (2, True)
    same = finetune(folder, "q.keras", folder / "d.npz", *data)
    assert same.exit_code == 2


def test_finetune_moves_images_alone(tmp_path: Path) -> None:
    flat = keras.Input((4,))
    model = keras.Model(flat, keras.layers.Dense(2)(flat), name="flat")
    qat_lib.quantize_model(model).save(tmp_path / "q.keras")
    np.savez(tmp_path / "d.npz", x=np.ones((10, 4)), y=np.arange(10) % 2)
    data = ["--data", str(tmp_path / "d.npz")]
    moved = finetune(tmp_path, "q.keras", tmp_path / "t.keras", *data, "--augment", "shift")
    assert moved.exit_code == 1
    assert "--augment shift moves images" in moved.stderr
    done = finetune(tmp_path, "q.keras", tmp_path / "t.keras", *data, *SHORT)
    assert done.exit_code == 0, done.stderr


@pytest.mark.matrix
def test_finetune_of_a_regression_with_two_inputs(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    hidden = keras.layers.Dense(8, "relu", name="hidden")(keras.layers.Concatenate()([left, right]))
    model = keras.Model([left, right], keras.layers.Dense(1, name="value")(hidden))
    model.save(tmp_path / "m.keras")
    generator = np.random.default_rng(0)
    x = {"left": generator.normal(size=(300, 4)), "right": generator.normal(size=(300, 2))}
    x = {name: array.astype(np.float32) for name, array in x.items()}
    y = x["left"].sum(axis=1)
    named = {f"x_train_{name}": array for name, array in x.items()}
    np.savez(tmp_path / "train.npz", **named, y_train=y)
    np.savez(tmp_path / "inputs.npz", **x)
    inputs, quantized = str(tmp_path / "inputs.npz"), str(tmp_path / "q.keras")
    made = ["quantize", str(tmp_path / "m.keras"), "--data", inputs, "-o", quantized]
    assert runner.invoke(app, made).exit_code == 0
    more = [
        "--data",
        str(tmp_path / "train.npz"),
        "--learning-rate",
        "0.05",
        "--epochs",
        "10",
        "--json",
    ]
    done = finetune(tmp_path, "q.keras", tmp_path / "t.keras", *more)
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["validation_mae"] < 0.5 * content["validation_mae_before"]
