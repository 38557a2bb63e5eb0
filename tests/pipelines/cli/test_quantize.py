"""``qatline quantize``: from a Keras file to a quantized model or plan."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import qat_lib
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
VNNI = ["--cpu", "vnni"]
"""Elsewhere a convolution of an image's channels stays in float."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small network and inputs for it."""
    path = tmp_path_factory.mktemp("models")
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.ReLU(name="relu")(keras.layers.Conv2D(4, 3, name="conv")(x))
    keras.Model(
        x, keras.layers.Dense(2, name="logits")(keras.layers.Flatten()(y)), name="small"
    ).save(path / "m.keras")
    np.save(path / "x.npy", np.random.default_rng(0).normal(size=(12, 8, 8, 3)).astype(np.float32))
    np.save(path / "small.npy", np.zeros((2, 4, 4, 3), np.float32))
    np.save(path / "text.npy", np.full((2, 8, 8, 3), "a"))
    np.save(path / "nan.npy", np.full((2, 8, 8, 3), np.nan, np.float32))
    np.save(path / "empty.npy", np.zeros((0, 8, 8, 3), np.float32))
    return path


def test_quantize_without_output_shows_plan_only(folder: Path) -> None:
    before = set(folder.iterdir())
    done = runner.invoke(app, ["quantize", str(folder / "m.keras"), *VNNI])
    assert done.exit_code == 0, done.stderr
    assert "small: 4 quantizers (2 activation, 2 weight)" in done.stdout
    assert "range-preserving" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert set(folder.iterdir()) == before


def test_quantize_output_is_calibrated_and_exportable(folder: Path, tmp_path: Path) -> None:
    model, plan, onnx = tmp_path / "q.keras", tmp_path / "plan.json", tmp_path / "q.onnx"
    arguments = [
        str(folder / "m.keras"),
        "-o",
        str(model),
        "--data",
        str(folder / "x.npy"),
        "--save-plan",
        str(plan),
    ]
    done = runner.invoke(app, ["quantize", *arguments, *VNNI, "--calibrator", "max", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 12
    found = qat_lib.model_quantizers(qat_lib.load_model(model))
    assert found["image_quantizer"].amax == pytest.approx(np.abs(np.load(folder / "x.npy")).max())
    exported = runner.invoke(app, ["export", str(model), "-o", str(onnx), "--plan", str(plan)])
    assert exported.exit_code == 0, exported.stderr
    assert "4 quantizers" in exported.stdout


def test_sign_of_integers_follows_the_backend(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "q.keras"
    arguments = [
        str(folder / "m.keras"),
        "-o",
        str(model),
        "--data",
        str(folder / "x.npy"),
        "--backend",
        "openvino",
    ]
    assert runner.invoke(app, ["quantize", *arguments]).exit_code == 0
    found = qat_lib.model_quantizers(qat_lib.load_model(model))
    (name,) = [name for name, quantizer in found.items() if quantizer.unsigned]
    assert name.startswith("flatten")
    command = ["export", str(model), "-o", str(tmp_path / "q.onnx")]
    refused = runner.invoke(app, [*command, "--target", "tensorrt"])
    assert refused.exit_code == 1
    assert "TensorRT runs no unsigned integers" in refused.stderr
    done = runner.invoke(app, [*command, "--target", "openvino"])
    assert done.exit_code == 0, done.stderr
    arguments[-1] = "tensorrt"
    assert runner.invoke(app, ["quantize", *arguments]).exit_code == 0
    found = qat_lib.model_quantizers(qat_lib.load_model(model))
    assert not any(quantizer.unsigned for quantizer in found.values())


def test_plan_is_for_the_cpu_of_the_engine(folder: Path) -> None:
    for cpu, pairs in (("avx2", True), ("vnni", False)):
        command = ["quantize", str(folder / "m.keras"), "--backend", "openvino", "--cpu", cpu]
        done = runner.invoke(app, [*command, "--json"])
        assert done.exit_code == 0, done.stderr
        plan = json.loads(done.stdout)["plan"]
        assert plan["cpu"] == cpu
        weights = [entry for entry in plan["quantizers"] if entry["kind"] == "weight"]
        assert any(e["pair_axis"] is not None or e["num_bits"] == 7 for e in weights) is pairs


def test_export_takes_float_precision(folder: Path, tmp_path: Path) -> None:
    command = ["export", str(folder / "m.keras"), "-o", str(tmp_path / "m.onnx"), "--json"]
    done = runner.invoke(app, [*command, "--float-precision", "fp16"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["opset"] == 19


def test_a_spec_and_a_case_are_honoured(folder: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("- name: logits\n  quantize_input: false\n  quantize_weight: false\n")
    done = runner.invoke(
        app, ["quantize", str(folder / "m.keras"), "--spec", str(spec), *VNNI, "--json"]
    )
    plan = json.loads(done.stdout)["plan"]
    assert {entry["tensor"] for entry in plan["quantizers"]} == {"image:0", "conv/kernel"}
    assert "logits" in {layer["layer"] for layer in plan["skipped"]}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nope.keras"], 1, "There is no model file"),
        (["m.keras", "-o", "q.keras"], 2, "Expected --output and --data together"),
        (["m.keras", "-o", "q.h5", "--data", "x.npy"], 2, "must end with .keras"),
        (["m.keras", "-o", "q.keras", "--data", "nope.npy"], 1, "can't be read"),
        (
            ["m.keras", "-o", "q.keras", "--data", "small.npy"],
            1,
            "Expected model inputs of shape nx8x8x3",
        ),
        (
            ["m.keras", "-o", "q.keras", "--data", "text.npy"],
            1,
            "Expected model inputs that are numbers",
        ),
        (["m.keras", "-o", "q.keras", "--data", "nan.npy"], 1, "Received NaN or infinity"),
        (["m.keras", "-o", "q.keras", "--data", "empty.npy"], 1, "Expected at least one sample"),
        (
            ["m.keras", "-o", "no/such/q.keras", "--data", "x.npy"],
            2,
            "Could not write no/such/q.keras",
        ),
        (["m.keras", "--mode", "partial", "--case", "MaxPool"], 2, "Did you mean MaxPoolQDQCase?"),
        (["m.keras", "--spec", "nope.yaml"], 1, "nope.yaml"),
    ],
)
def test_bad_input_ends_with_one_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(folder)
    before = set(folder.iterdir())
    done = runner.invoke(app, ["quantize", *arguments])
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert "\x1b" not in done.stderr
    assert set(folder.iterdir()) == before


def test_export_with_a_bad_check_writes_nothing(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.onnx"
    done = runner.invoke(
        app,
        ["export", str(folder / "m.keras"), "-o", str(output), "--check", str(folder / "nan.npy")],
    )
    assert done.exit_code == 1
    assert "Received NaN or infinity" in done.stderr
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "equalizes", "why"),
    [
        ([], True, "error of the outputs in INT8"),
        (["--no-equalize"], False, "not asked for"),
        (["--equalize"], True, "asked for"),
    ],
)
def test_quantize_equalizes_around_depthwise_convolutions(
    options: list[str], equalizes: bool, why: str, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3), name="image")
    y = keras.layers.ReLU(6.0, name="relu")(keras.layers.Conv2D(4, 3, name="conv")(x))
    model = keras.Model(x, keras.layers.DepthwiseConv2D(3, name="dw")(y))
    spread = np.float32([4, 0.4, 0.04, 0.004])  # uneven channels, of equal importance
    for name, factors in (("conv", spread), ("dw", 1 / spread[:, None])):
        kernel = model.get_layer(name).kernel
        kernel.assign(kernel * factors)
    model.save(tmp_path / "m.keras")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("f4"))
    paths = ["-o", str(tmp_path / "q.keras"), "--data", str(tmp_path / "x.npy")]
    done = runner.invoke(app, ["quantize", str(tmp_path / "m.keras"), *paths, *options, *VNNI])
    assert done.exit_code == 0, done.stderr
    relu = qat_lib.load_model(tmp_path / "q.keras").get_layer("relu")
    assert isinstance(relu, qat_lib.keras.quantizers.ChannelReLU) is equalizes
    assert f"equalized: {'yes' if equalizes else 'no'}: {why}" in done.stdout


def test_quantize_rounds_by_outputs_and_leaves_no_state(folder: Path, tmp_path: Path) -> None:
    paths = ["-o", str(tmp_path / "q.keras"), "--data", str(folder / "x.npy")]
    done = runner.invoke(
        app, ["quantize", str(folder / "m.keras"), *paths, *VNNI, "--rounding", "adaround"]
    )
    assert done.exit_code == 0, done.stderr
    assert "rounding: layer 2 of 2" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["q.keras"]
