"""``qatline check-engine``: verdict, exit code, first departing layer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from reference_networks import ResidualNetwork, write_network
from typer.testing import CliRunner

from qat_lib.engines import BuildSpec, build_engine, read_manifest
from qat_lib.engines.onnxruntime import OnnxRuntimeEngine
from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file, its engine, and inputs."""
    path = tmp_path_factory.mktemp("engines")
    graph = write_network(path / "n.onnx", ResidualNetwork(seed=1), "int8")
    engine = build_engine(
        graph, BuildSpec(backend="onnxruntime", max_batch_size=4), output=path / "n.engine"
    )
    (info,) = read_manifest(engine.path).inputs
    np.save(path / "x.npy", np.random.default_rng(0).normal(size=(6, *info.shape[1:])))
    return path


def command(folder: Path, *more: str) -> list[str]:
    paths = [str(folder / "n.engine"), "--onnx", str(folder / "n.onnx")]
    return ["check-engine", *paths, "--data", str(folder / "x.npy"), *more]


def test_check_engine_passes_a_sound_engine(folder: Path) -> None:
    before = set(folder.iterdir())
    done = runner.invoke(app, command(folder, "--layers"))
    assert done.exit_code == 0, done.stderr
    assert "The engine agrees" in done.stdout
    assert "8 random requests and 6 real inputs" in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert set(folder.iterdir()) == before
    found = json.loads(runner.invoke(app, command(folder, "--json", "--samples", "3")).stdout)
    assert (found["passed"], found["samples"], found["layers"]) == (True, 3, [])


def test_check_engine_ends_with_1_and_names_the_layer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = OnnxRuntimeEngine._run

    def broken(self: Any, request: Any, values: Any) -> dict[str, Any]:
        answers = run(self, request, values)
        wrong = list(answers)[0 if len(answers) == 1 else 4 :]
        return {name: -v if name in wrong else v for name, v in answers.items()}

    monkeypatch.setattr(OnnxRuntimeEngine, "_run", broken)
    done = runner.invoke(app, command(folder))
    assert done.exit_code == 1, done.stderr
    assert "The engine departs" in done.stdout
    assert "The first layer that departs is" in " ".join(done.stdout.split())
    failed = json.loads(runner.invoke(app, command(folder, "--json")).stdout)
    assert failed["first_layer"]


def test_check_engine_refuses_the_graph_of_another_engine(folder: Path, tmp_path: Path) -> None:
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> net (float[N,4] x) => (float[N,4] y) '
            "{ y = Relu (x) }"
        ),
        tmp_path / "other.onnx",
    )
    arguments = [str(folder / "n.engine"), "--onnx", str(tmp_path / "other.onnx")]
    done = runner.invoke(app, ["check-engine", *arguments])
    assert done.exit_code == 1
    assert "Expected the ONNX file that n.engine was built from" in done.output
    assert "bug" not in done.output


def test_build_shows_one_message_of_onnx_runtime(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x, y = (
        f"float[{','.join('N' if size is None else str(size) for size in info.shape)}] {info.name}"
        for info in (
            *read_manifest(folder / "n.engine").inputs,
            *read_manifest(folder / "n.engine").outputs,
        )
    )
    onnx.save(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]> net ({x}) => ({y})
            <int64[2] shape = {{7, 11}}>
            {{ {y.split()[-1]} = Reshape ({x.split()[-1]}, shape) }}"""
        ),
        tmp_path / "other.onnx",
    )
    arguments = [str(tmp_path / "other.onnx"), "--backend", "onnxruntime"]
    done = runner.invoke(app, ["build-engine", *arguments])
    assert done.exit_code == 1
    assert "can't run" in done.output
    # ONNX Runtime's log goes past Python, in colours.
    assert "\x1b" not in done.output + capfd.readouterr().err


def test_check_engine_needs_something_to_send(folder: Path) -> None:
    arguments = [str(folder / "n.engine"), "--onnx", str(folder / "n.onnx"), "--requests", "0"]
    done = runner.invoke(app, ["check-engine", *arguments])
    assert done.exit_code == 2
    assert "Expected --data, or --requests of 1 or more" in done.stderr
