"""``qatline search``: a spec within the bound, and what takes it."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers
from planted_faults import scale_channel
from typer.testing import CliRunner

import qat_lib
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with an outlier channel in conv1, inputs, and FP32's labels for them."""
    path = tmp_path_factory.mktemp("models")
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((8, 8, 3), name="image")
    x = layers.ReLU(name="relu1")(layers.Conv2D(8, 3, name="conv1")(x))
    x = layers.ReLU(name="relu2")(layers.Conv2D(8, 3, name="conv2")(x))
    x = layers.Dense(5, name="logits")(layers.Flatten(name="flat")(x))
    model = keras.Model(inputs, x, name="small")
    scale_channel(model, "conv1", "conv2", 3, 1000.0)
    model.save(path / "m.keras")
    data = np.random.default_rng(0).normal(size=(200, 8, 8, 3)).astype(np.float32)
    labels = np.asarray(model(data)).argmax(axis=1)
    np.savez(path / "x.npz", x=data, y=labels)
    np.save(path / "x.npy", data)
    return path


@pytest.mark.matrix
def test_search_writes_a_spec_that_quantize_takes(folder: Path, tmp_path: Path) -> None:
    best, before = tmp_path / "best.yaml", set(folder.iterdir())
    arguments = ["--data", str(folder / "x.npz"), "--max-drop", "2%", "--no-engines"]
    cpu = ["--cpu", "vnni"]  # elsewhere the first convolution is in float, too
    done = runner.invoke(
        app, ["search", str(folder / "m.keras"), *arguments, *cpu, "-o", str(best)]
    )
    assert done.exit_code == 0, done.stderr
    assert "In float: 1 of 3 weighted layers" in done.stdout
    assert max(map(len, done.stdout.replace(str(tmp_path), "").splitlines()[:-2])) <= 80
    (entry,) = qat_lib.QuantizationSpec.load(best).layers
    assert entry.name == "conv2"
    assert best.read_text().startswith("# small: accuracy on 200 samples")
    assert set(folder.iterdir()) == before
    options = ["--spec", str(best), "--data", str(folder / "x.npy"), *cpu, "--json"]
    quantized = runner.invoke(
        app,
        ["quantize", str(folder / "m.keras"), *options, "-o", str(tmp_path / "q.keras")],
    )
    assert quantized.exit_code == 0, quantized.stderr
    weights = [q["tensor"] for q in json.loads(quantized.stdout)["plan"]["quantizers"]]
    assert "conv2/kernel" not in weights
    assert "conv1/kernel" in weights


def test_search_without_labels_compares_with_fp32(folder: Path) -> None:
    arguments = ["--data", str(folder / "x.npy"), "--max-drop", "1", "--no-engines", "--json"]
    done = runner.invoke(app, ["search", str(folder / "m.keras"), *arguments])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metric"], found["float_value"], found["floats"]) == ("agreement", 1.0, [])
    assert found["samples"] == 200


def test_search_ends_with_1_where_int8_is_not_chosen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package's attribute of that name is the function.
    monkeypatch.setattr(sys.modules["qat_lib.keras.search.search"], "LEAST_RATIO", 1e9)
    best = tmp_path / "best.yaml"
    arguments = ["--data", str(folder / "x.npy"), "--max-drop", "100%", "-o", str(best)]
    speed = ["--backend", "onnxruntime", "--seconds", "0.05"]
    done = runner.invoke(app, ["search", str(folder / "m.keras"), *arguments, *speed])
    assert done.exit_code == 1, done.stderr
    assert "Verdict: keep FP32: this placement is not faster" in done.stdout
    assert not best.exists()


def test_search_bounds_the_loss_of_a_regression(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((8,), name="values")
    x = layers.Dense(8, "relu", name="hidden")(x)
    keras.Model(inputs, layers.Dense(1, name="value")(x)).save(tmp_path / "m.keras")
    data = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    targets = keras.models.load_model(tmp_path / "m.keras").predict(data, verbose=0) + 0.5
    np.savez(tmp_path / "x.npz", x=data, y=targets)
    given = ["--data", str(tmp_path / "x.npz"), "--max-drop", "5%", "--no-engines", "--json"]
    done = runner.invoke(app, ["search", str(tmp_path / "m.keras"), *given])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metric"], found["float_value"]) == ("mae", 1.0)
    assert 0.95 <= found["value"] <= 1.05
    assert found["all_int8_value"] != 1.0
    other = ["--metric", "fidelity", "--task", "unused"]  # needs no task
    done = runner.invoke(app, ["search", str(tmp_path / "m.keras"), *given, *other])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["metric"] == "fidelity"
