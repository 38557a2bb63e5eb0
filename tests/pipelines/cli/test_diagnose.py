"""``qatline diagnose``: table, page, spec, resumption."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from planted_faults import images, network, quantized, scale_channel
from typer.testing import CliRunner

import qat_lib
from qatline.pipelines.cli.diagnose import default_journal
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with an outlier channel in conv1, in both forms, and inputs."""
    path = tmp_path_factory.mktemp("models")
    model = network()
    scale_channel(model, "conv1", "conv2", 3, 100.0)
    model.save(path / "m.keras")
    quantized(model).save(path / "q.keras")
    np.save(path / "x.npy", images())
    return path


@pytest.mark.matrix
def test_diagnose_names_the_planted_layer_first(
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensorflow = logging.getLogger("tensorflow")
    monkeypatch.setattr(tensorflow, "handlers", [caplog.handler])
    html, spec = tmp_path / "page.html", tmp_path / "fix.yaml"
    before = set(folder.iterdir())
    arguments = [str(folder / "m.keras"), "--data", str(folder / "x.npy"), "--samples", "16"]
    done = runner.invoke(
        app,
        [
            "diagnose",
            *arguments,
            "--html",
            str(html),
            "--save-spec",
            str(spec),
            "--backend",
            "tensorrt",
        ],
    )
    assert done.exit_code == 0, done.stderr
    assert "retracing" not in caplog.text
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "1. conv1: outlier channel in relu1:0" in done.stdout
    assert '<table class="effects">' in html.read_text()
    assert qat_lib.QuantizationSpec.load(spec).layers[0].name == "conv2"
    assert set(folder.iterdir()) == before
    model = str(tmp_path / "mended.keras")
    mended = runner.invoke(
        app, ["quantize", *arguments[:3], "--spec", str(spec), "-o", model, "--json"]
    )
    assert mended.exit_code == 0, mended.stderr
    skipped = {each["layer"]: each for each in json.loads(mended.stdout)["plan"]["skipped"]}
    assert skipped["conv2"]["reason"] == "excluded"


def test_diagnose_takes_a_quantized_model_and_gives_json(folder: Path) -> None:
    arguments = [str(folder / "q.keras"), "--data", str(folder / "x.npy"), "--measure", "error"]
    done = runner.invoke(app, ["diagnose", *arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["measure"] == "error"
    assert found["findings"][0]["layer"] == "conv1"
    assert found["samples"] == 16


def test_diagnose_refuses_a_spec_for_a_quantized_model(folder: Path, tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text("- name: conv1\n")
    arguments = [str(folder / "q.keras"), "--data", str(folder / "x.npy"), "--spec", str(spec)]
    done = runner.invoke(app, ["diagnose", *arguments])
    assert done.exit_code == 2
    assert "Expected --spec with a model in float" in done.stderr


def test_default_journal_is_hidden_beside_the_model() -> None:
    place = default_journal(Path("a/m.keras"), "diagnosis")
    assert place == Path("a/.m.diagnosis.state")
