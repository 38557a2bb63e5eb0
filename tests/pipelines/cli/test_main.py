"""The command line's messages and exit codes.

Commands on single files run on small files made here.
"""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from qat_lib.errors import ConfigError, DataError
from qatline.pipelines.cli import errors as cli_errors
from qatline.pipelines.cli.main import app

ROOT = Path(__file__).parents[3]
HEAVY = (
    "tensorflow",
    "keras",
    "kfp",
    "mlflow",
    "openvino",
    "onnxruntime",
    "onnx",
    "sklearn",
    "boto3",
    "pydantic",
)
runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """A 1x1 convolution in floating point."""
    weight = numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w")
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 8, 8])],
        [weight],
    )
    path = tmp_path / "model.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path
    )
    return path


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom qatline.pipelines.cli.main import app\n"
        "from typer.testing import CliRunner\nresult = CliRunner().invoke(app, ['--help'])\n"
        f"sys.exit(result.exit_code or ' '.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_run_help_fits_a_screen() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qatline.pipelines.cli.main", "run", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        check=True,
    )
    lines = done.stdout.rstrip().splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 80
    for group in ("What to run", "Storage and caching", "What to show"):
        assert f"\n{group}:\n" in done.stdout


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).stdout.startswith("qatline ")


def test_config_show_and_schema(tmp_path: Path) -> None:
    shown = runner.invoke(app, ["config", "show", "--set", "qat.epochs=9"])
    assert "epochs: 9" in shown.stdout
    path = tmp_path / "sub" / "schema.json"
    assert runner.invoke(app, ["config", "schema", "-o", str(path)]).exit_code == 0
    assert json.loads(path.read_text()) == json.loads(
        runner.invoke(app, ["config", "schema"]).stdout
    )
    wrong = runner.invoke(app, ["config", "show", "--set", "qat.epoch=9"])
    assert wrong.exit_code == 2
    assert "did you mean 'qat.epochs'?" in wrong.stderr


def test_compile_writes_the_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    done = runner.invoke(app, ["compile", "-o", str(path), "--set", "seed=3"])
    assert done.exit_code == 0, done.stderr
    assert "name: qatline" in path.read_text()


def test_compare_and_ui_need_runs(tmp_path: Path) -> None:
    place = ["--runs-dir", str(tmp_path)]
    for command in (["compare", *place], ["ui", "x", *place]):
        done = runner.invoke(app, command)
        assert done.exit_code == 2
        assert "Expected" in done.stderr


def test_verify_passes_and_fails(onnx_file: Path, tmp_path: Path) -> None:
    passed = runner.invoke(app, ["verify", str(onnx_file), "--json"])
    assert passed.exit_code == 0, passed.stderr
    assert json.loads(passed.stdout)["passed"] is True
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(onnx_file.read_bytes()[:-20])
    failed = runner.invoke(app, ["verify", str(broken)])
    assert failed.exit_code == 1
    assert failed.stderr.startswith("Error: ")
    assert "bug" not in failed.stderr


def test_verify_ends_with_1_on_findings(onnx_file: Path) -> None:
    model = onnx.load(onnx_file)
    scale = numpy_helper.from_array(np.array(-1.0, np.float32), "s")
    zero = numpy_helper.from_array(np.array(0, np.int8), "z")
    model.graph.initializer.extend([scale, zero])
    model.graph.node.insert(
        0, helper.make_node("DequantizeLinear", ["q", "s", "z"], ["xq"], name="dq")
    )
    model.graph.node.insert(0, helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"))
    model.graph.node[2].input[0] = "xq"
    onnx.save(model, onnx_file)
    failed = runner.invoke(app, ["verify", str(onnx_file)])
    assert failed.exit_code == 1
    assert "V01" in failed.stdout
    assert "bug" not in failed.stderr


def test_analyze_shows_a_table_json_and_html(onnx_file: Path, tmp_path: Path) -> None:
    html = tmp_path / "graph.html"
    shown = runner.invoke(app, ["analyze", str(onnx_file), "--html", str(html)])
    assert shown.exit_code == 0, shown.stderr
    assert "weighted layers in INT8" in shown.stdout
    assert html.read_text().lstrip().lower().startswith("<!doctype html>")
    content = json.loads(runner.invoke(app, ["analyze", str(onnx_file), "--json"]).stdout)
    assert content["layers"][0]["precision"] == "float"
    layers = tmp_path / "layers.json"
    layers.write_text(json.dumps({"Layers": ["conv"]}))
    scored = runner.invoke(app, ["analyze", str(onnx_file), "--compare", str(layers)])
    assert scored.exit_code == 0, scored.stderr
    assert "layers found" in scored.stdout


def test_analyze_follows_the_recorded_target(onnx_file: Path) -> None:
    model = onnx.load(onnx_file)
    helper.set_model_props(model, {"qatline.target": "openvino"})
    onnx.save(model, onnx_file)
    shown = runner.invoke(app, ["analyze", str(onnx_file)])
    assert re.search("predicted for +│ openvino", shown.stdout), shown.output
    assert "Note:" not in shown.stdout
    asked = runner.invoke(app, ["analyze", str(onnx_file), "--tensorrt", "10"])
    assert re.search("predicted for +│ tensorrt", asked.stdout)
    assert "This file was exported for openvino" in " ".join(asked.stdout.split())


def test_analyze_traces_one_tensor(onnx_file: Path) -> None:
    shown = runner.invoke(app, ["analyze", str(onnx_file), "--trace", "conv"])
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[:2] == [
        "conv: Keras layer conv",
        "  node conv (predicted float)",
    ]
    content = json.loads(
        runner.invoke(app, ["analyze", str(onnx_file), "--trace", "conv", "--json"]).stdout
    )
    assert content["trace"]["nodes"][0]["predicted"] == "float"
    assert content["layers"][0]["precision"] == "float"
    failed = runner.invoke(app, ["analyze", str(onnx_file), "--trace", "cnv"])
    assert failed.exit_code == 2
    assert "Did you mean 'conv'?" in failed.stderr


def test_an_engine_is_built_and_measured(onnx_file: Path, tmp_path: Path) -> None:
    engine = tmp_path / "model.engine"
    shapes = "x:1x3x8x8,2x...,4x..."
    arguments = [
        str(onnx_file),
        "-o",
        str(engine),
        "--backend",
        "onnxruntime",
        "--shapes",
        shapes,
        "--threads",
        "1",
    ]
    built = runner.invoke(app, ["build-engine", *arguments])
    assert built.exit_code == 0, built.stderr
    assert "0 of 1 weighted layers in INT8" in " ".join(built.stdout.split())
    assert engine.is_file()
    content = json.loads(runner.invoke(app, ["build-engine", *arguments, "--json"]).stdout)
    assert content["backend"] == "onnxruntime"
    measured = runner.invoke(app, ["bench-engine", str(engine), "--batch-size", "1", "--batch-size", "4",
                                   "--seconds", "0.02", "--json"])  # fmt: skip
    assert measured.exit_code == 0, measured.stderr
    assert [each["batch_size"] for each in json.loads(measured.stdout)["latencies"]] == [1, 4]
    shown = runner.invoke(app, ["bench-engine", str(engine), "--seconds", "0.02", "--layers"])
    assert "samples/s" in shown.stdout


def test_every_option_of_a_build_reaches_the_spec(
    onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qat_lib import engines
    from qat_lib.errors import EngineBuildError

    seen: list[engines.BuildSpec] = []

    def build(model: Path, spec: engines.BuildSpec, **options: object) -> None:
        assert options["output"] == tmp_path / "model.engine"
        options["on_progress"]("Building", 1, 2)  # type: ignore[operator]
        seen.append(spec)
        raise EngineBuildError("seen enough")

    monkeypatch.setattr(engines, "build_engine", build)
    command = (
        f"build-engine {onnx_file} -o {tmp_path}/model.engine --shapes x:1x3x8x8,2x...,4x... --workspace 4GiB "
        "--optimization-level 4 --timing-cache cache.bin --layer-timing --hardware-compatible --version-compatible "
        "--threads 2 --float-precision fp16 --max-batch-size 3 --hint throughput --property SNIPPETS_MODE=ENABLE"
    )
    result = runner.invoke(app, command.split())
    assert result.stderr == "Error: seen enough\n"  # no bars where stderr is no terminal
    assert seen == [
        engines.BuildSpec(
            shapes=engines.parse_shapes("x:1x3x8x8,2x3x8x8,4x3x8x8"),
            workspace_mib=4 * 2**10,
            optimization_level=4,
            timing_cache=Path("cache.bin"),
            profile=True,
            hardware_compatible=True,
            version_compatible=True,
            threads=2,
            float_precision="fp16",
            max_batch_size=3,
            hint="throughput",
            properties={"SNIPPETS_MODE": "ENABLE"},
        )
    ]


def test_compute_time_is_shown_if_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from types import SimpleNamespace
    from typing import Any

    from qat_lib.engines import Latency, Percentiles
    from qatline.pipelines.cli.model_views import show_latencies

    manifest: Any = SimpleNamespace(
        backend="tensorrt",
        backend_version="11.4",
        precision=SimpleNamespace(int8_layers=3, weighted_layers=4),
    )
    times, compute = (Percentiles(p50=p50, p90=p50, p99=p50, mean=p50) for p50 in (7.25, 5.125))
    common: Any = {"batch_size": 8, "iterations": 10, "end_to_end": times, "throughput": 100.0}
    show_latencies(manifest, [Latency(**common)], [])
    assert "compute" not in capsys.readouterr().out
    show_latencies(manifest, [Latency(**common, compute=compute)], [])
    shown = capsys.readouterr().out
    assert "7.25" in shown
    assert "compute alone" in shown
    assert "5.12" in shown


def test_a_build_on_a_terminal_shows_its_phases() -> None:
    from io import StringIO

    from rich.console import Console

    from qatline.pipelines.cli.build_progress import build_progress

    text = StringIO()
    with build_progress(Console(file=text, force_terminal=True)) as update:
        update("Building [x]", 1, 2)
        update("Building [x]", 2, 2)
    assert "Building [x]" in text.getvalue()
    assert "100%" in text.getvalue()
    with build_progress(Console(file=(plain := StringIO()))) as update:
        update("Building", 1, 2)
    assert plain.getvalue().strip() == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build-engine", "nope.onnx"], 1, "nope.onnx"),
        (["build-engine", "nope.onnx", "--shapes", "x"], 2, "Shapes are written as"),
        (["build-engine", "nope.onnx", "--workspace", "much"], 2, "A size is a number"),
        (
            ["build-engine", "nope.onnx", "--property", "X"],
            2,
            "A property is written as NAME=VALUE",
        ),
        (
            ["build-engine", "nope.onnx", "--backend", "onnxruntime", "--property", "X=1"],
            2,
            "onnxruntime has none",
        ),
        (["bench-engine", "nope.engine"], 1, "There is no engine file at nope.engine"),
        (
            ["cluster", "schedule", "x", "--cron", "* *", "--host", "http://127.0.0.1:1"],
            2,
            "six fields",
        ),
        (["cluster", "schedules", "--host", "http://127.0.0.1:1"], 1, "nothing answers"),
        (
            ["run", "--set", "gate.max_drop=-2"],
            2,
            "expected a number of at least 0.0, received -2",
        ),
    ],
)
def test_bad_input_ends_with_one_message(arguments: list[str], code: int, message: str) -> None:
    done = runner.invoke(app, arguments)
    assert done.exit_code == code
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_full_disk_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException) as ended, cli_errors.reported():  # noqa: PT011
        raise OSError(errno.EFBIG, "File too large")  # of a file without a name
    assert ended.value.exit_code == 1  # type: ignore[attr-defined]
    said = capsys.readouterr().err
    assert "Error: the disk is full, or a file reached the limit of its size" in said
    assert "bug" not in said


def test_unknown_error_is_called_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException) as ended, cli_errors.reported():  # noqa: PT011 - typer's own class of exit
        raise ZeroDivisionError("oops")
    assert ended.value.exit_code == 1  # type: ignore[attr-defined]
    captured = capsys.readouterr()
    assert "Error: ZeroDivisionError: oops\nThis is a bug in qatline." in captured.err
    assert "Traceback" not in captured.err


def test_debug_shows_the_traceback_and_json_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException) as ended, cli_errors.reported(debug=True, as_json=True):  # noqa: PT011
        raise DataError("expected a, received b")
    assert ended.value.exit_code == DataError.exit_code == 1  # type: ignore[attr-defined]
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert json.loads(captured.out) == {
        "error": {"type": "DataError", "message": "expected a, received b"}
    }


def test_ctrl_c_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException) as ended, cli_errors.reported():  # noqa: PT011
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130  # type: ignore[attr-defined]
    assert ConfigError.exit_code == 2
