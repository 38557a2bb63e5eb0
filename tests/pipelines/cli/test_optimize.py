"""``qatline optimize``: arrays with and without targets, of both frameworks, and its exit codes."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from typer.testing import CliRunner

from qat_lib.engines import load_engine
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
QUICK = ["--seconds", "0.02"]

MODULE = """
import torch

def network():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 3, 1)]
    return torch.nn.Sequential(*layers).eval()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, and its own answers as labels of its training and test samples."""
    path = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((6, 6, 8), name="image")
    x = layers.ReLU()(layers.Conv2D(8, 3)(x))
    model = keras.Model(inputs, layers.Dense(4)(layers.Flatten()(x)), name="small")
    model.save(path / "m.keras")
    data = np.random.default_rng(0).normal(size=(160, 6, 6, 8)).astype(np.float32)
    labels = np.asarray(model(data)).argmax(axis=1)
    parts = {"x_train": data[:96], "y_train": labels[:96]}
    np.savez(path / "d.npz", **parts, x_test=data[96:], y_test=labels[96:])
    np.save(path / "x.npy", data)
    np.savez(path / "x.npz", x_train=data)
    return path


@pytest.fixture
def int8_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks gain nothing from INT8."""
    # The package's attribute of that name is the function.
    monkeypatch.setattr(import_module("qat_lib.optimization.optimize"), "LEAST_RATIO", 0.0)


@pytest.mark.usefixtures("int8_is_fast")
def test_optimize_measures_on_test_samples(folder: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(folder / "d.npz"), "-o", str(tmp_path), "--classes", "a,b,c,d"]
    done = runner.invoke(app, ["optimize", str(folder / "m.keras"), *arguments, *QUICK])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("small: int8, 2 of 2 layers in INT8, accuracy 100.00% -> ")
    assert "float.engine, plan.json, report.html" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["samples"] == 64
    with load_engine(tmp_path / "model.engine") as engine:
        assert engine.manifest.classes == ("a", "b", "c", "d")


@pytest.mark.matrix
def test_optimize_trains_where_calibration_and_float_layers_lose(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(folder / "d.npz") as arrays:
        parts = dict(arrays)
    parts["x_train"] = parts["x_train"] * np.float32(0.01)  # ranges that clip the test samples
    np.savez(tmp_path / "d.npz", **parts)
    tuning, samples = import_module("qatline.components.training.finetuning"), []
    finetune = tuning.finetune

    def recorded(model: Any, data: Any, *rest: Any, **options: Any) -> Any:
        samples.append((data.samples, len(data.validating.targets), options["teacher"].name))
        return finetune(model, data, *rest, **options)

    monkeypatch.setattr(tuning, "finetune", recorded)
    arguments = ["--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "out"), *QUICK]
    bound = ["--max-drop", "1%", "--json"]
    done = runner.invoke(app, ["optimize", str(folder / "m.keras"), *arguments, *bound])
    assert done.exit_code == 1, done.stderr
    found = json.loads(done.stdout)
    assert [each["method"] for each in found["attempts"]] == ["calibration", "training"]
    assert samples == [(77, 19, "small")]
    assert found["verdict"] == "keep fp32"
    assert "is above the accepted 0.01" in found["reason"]


@pytest.mark.matrix
@pytest.mark.usefixtures("int8_is_fast")
def test_optimize_scores_masks_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "nets_to_optimize.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    network = import_module("nets_to_optimize").network()
    x = np.random.default_rng(0).normal(size=(24, 8, 6, 6)).astype(np.float32)
    with torch.no_grad():
        masks = network(torch.from_numpy(x)).argmax(dim=1).numpy().astype(np.uint8)
    np.savez(tmp_path / "d.npz", x=x, y=masks)
    arguments = ["--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "out"), *QUICK]
    task = ["--task", "segmentation", "--json"]
    done = runner.invoke(app, ["optimize", "nets_to_optimize:network", *arguments, *task])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metric"], found["float_value"]) == ("mean_iou", 1.0)
    assert 0.9 < found["value"] <= 1.0


def test_optimize_keeps_the_outputs_of_a_detector_in_float(tmp_path: Path) -> None:
    x = inputs = keras.Input((16, 16, 2))
    x = layers.Conv2D(8, 3, 2, padding="same", activation="relu")(x)
    keras.Model(inputs, layers.Conv2D(1 + 4, 1)(x)).save(tmp_path / "m.keras")
    images = np.random.default_rng(0).normal(size=(16, 16, 16, 2)).astype(np.float32)
    boxes = np.tile(np.float32([2, 2, 12, 12, 0, 0]), (16, 1, 1))
    np.savez(tmp_path / "d.npz", x=images, y=boxes)
    arguments = ["--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "out"), *QUICK]
    command = ["optimize", str(tmp_path / "m.keras"), *arguments, "--task", "detection", "--json"]
    found = json.loads(runner.invoke(app, command).stdout)
    assert (found["metric"], found["int8_layers"], found["weighted_layers"]) == ("map", 1, 2)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_optimize_without_targets_compares_with_fp32(
    folder: Path, tmp_path: Path, name: str
) -> None:
    arguments = ["--data", str(folder / name), "-o", str(tmp_path), "--samples", "32", *QUICK]
    done = runner.invoke(app, ["optimize", str(folder / "m.keras"), *arguments, "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == bool(found["reason"])
    assert (found["metric"], found["samples"], found["float_value"]) == ("agreement", 160, 1.0)
