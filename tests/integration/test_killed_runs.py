"""First runs killed at random moments resume to the same results.

The moments include the first second. ``QATLINE_TEST_KILLS`` sets how many there are in each slow
test (default 10), ``QATLINE_TEST_SEED`` which moments.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kill_trials import Start, digests, kill_first_run, left_behind, outcome, plan_kills, resume

pytestmark = pytest.mark.matrix
ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "pipelines" / "fakes"
KILLS = int(os.environ.get("QATLINE_TEST_KILLS", "10"))
SEED = int(os.environ.get("QATLINE_TEST_SEED", "0"))
MODEL = """
import keras

def build(input_shape, classes):
    inputs = keras.Input(input_shape)
    x = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x))
"""
QUICK = (
    "model.name=tiny_model:build",
    "data.calibration_samples=32",
    "training.epochs=2",
    "training.learning_rate=0.01",
    "qat.epochs=1",
    "export.parity_samples=64",
    "engine.benchmark_seconds=0.05",
    "gate.max_drop=1",
    "gate.min_speedup=0.01",  # how long so small a network takes must not decide
)
# What follows the export is measured, and differs from run to run.
COMPUTED = ("dataset", "baseline", "ptq", "qat", "onnx")


def start_real(folder: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Start the real pipeline with a tiny model.

    A resumed run has its config.
    """
    (folder / "tiny_model.py").write_text(MODEL)
    overrides = (
        [] if "resume" in arguments else [text for value in QUICK for text in ("--set", value)]
    )
    return _start(
        folder,
        ["-c", "from qatline.pipelines.cli.main import main; main()", *arguments, *overrides],
        {},
    )


def start_fake(folder: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Start quick fake steps with real launcher, step store and MLflow."""
    path = os.pathsep.join((str(FAKES), str(ROOT)))
    return _start(folder, [str(FAKES / "fake_cli.py"), *arguments], {"PYTHONPATH": path})


def start_untracked(folder: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Start the quick fake steps without MLflow."""
    path = os.pathsep.join((str(FAKES), str(ROOT)))
    variables = {"PYTHONPATH": path, "QATLINE_TRACKING": "off"}
    return _start(folder, [str(FAKES / "fake_cli.py"), *arguments], variables)


def _start(
    folder: Path, arguments: Sequence[str], variables: dict[str, str]
) -> "subprocess.Popen[str]":
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "QATLINE_"))
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**kept, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_first_runs_of_fake_steps_resume(tmp_path: Path) -> None:
    run_trials(start_untracked, tmp_path, count=2, computed=("dataset", "baseline", "evaluation"))


@pytest.mark.slow
@pytest.mark.timeout(0)  # as many runs as were asked for; each has a limit of its own
def test_killed_first_runs_of_tracked_fake_steps_resume(tmp_path: Path) -> None:
    run_trials(start_fake, tmp_path, count=KILLS, computed=("dataset", "baseline", "evaluation"))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_killed_first_runs_of_real_steps_resume(tmp_path: Path) -> None:
    run_trials(start_real, tmp_path, count=KILLS, computed=COMPUTED)


def run_trials(start: Start, root: Path, *, count: int, computed: Sequence[str]) -> None:
    """Kill ``count`` first runs; each must resume to an untouched run's results.

    Each has a folder of its own.
    """
    started = time.monotonic()
    reference = outcome(start(_new(root / "untouched"), ["run", "--json"]))
    seconds = time.monotonic() - started
    killed = 0
    for index, kill in enumerate(plan_kills(count, seconds=seconds, seed=SEED)):
        folder = _new(root / f"killed{index}")
        if not kill_first_run(start, folder, kill):
            continue  # it had ended before
        killed += 1
        result = resume(start, folder)
        statuses = [step["status"] for step in result["steps"]]
        _report(
            f"{index + 1}/{count}: {kill.victim} killed after {kill.moment:.1f} s of {seconds:.0f}: {statuses}"
        )
        _check(result, reference, computed)
        assert left_behind(folder) == []
    _report(f"{killed} of {count} first runs were killed; all resumed to the same results")
    assert killed >= count // 2, "most runs had ended before their moment came"


def _check(result: dict[str, Any], reference: dict[str, Any], computed: Sequence[str]) -> None:
    """Compare all that is computed, and the verdict on what is measured."""
    found, expected = digests(result), digests(reference)
    assert {name: found[name] for name in computed} == {name: expected[name] for name in computed}
    for row, values in reference["results"].items():
        assert result["results"][row]["quality"]["accuracy"] == values["quality"]["accuracy"]
    assert result["gate"]["verdict"] == reference["gate"]["verdict"]
    assert [step["name"] for step in result["steps"]] == [
        step["name"] for step in reference["steps"]
    ]


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _report(text: str) -> None:
    """Show how far the trials are, even where pytest captures."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{text}\n")
