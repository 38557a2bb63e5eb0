"""A real run killed with SIGKILL in each step, resumed each time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qatline.pipelines.steps import STEP_ARTIFACTS

pytestmark = pytest.mark.matrix
STEPS = list(STEP_ARTIFACTS)
QUICK = [
    "training.epochs=3",
    "qat.epochs=1",
    "engine.benchmark_seconds=0.2",
    "gate.max_drop=1",
    "gate.min_speedup=0.01",  # the load of the machine must not decide
]
OVERRIDES = [text for override in QUICK for text in ("--set", override)]


def qatline(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MLFLOW_", "QATLINE_"))
    }
    return subprocess.Popen(
        [sys.executable, "-c", "from qatline.pipelines.cli.main import main; main()", *arguments],
        cwd=folder,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate(timeout=850)
    assert process.returncode == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


def executor_of(parent: int) -> int | None:
    """The process of the running step: the innermost one of KFP's executor."""
    found = [
        pid
        for pid in descendants(parent)
        if "executor_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return found[-1] if found else None


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 600.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)
    return value


def started(folder: Path, step: str, since: int) -> bool:
    for events in folder.glob("runs/*/events.jsonl"):
        lines = events.read_bytes()[since:].splitlines()
        return any(f'"step_started", "step": "{step}"'.encode() in line for line in lines)
    return False


@pytest.mark.slow
def test_run_killed_in_every_step_ends_alike(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    killed.mkdir()
    for place, step in enumerate(STEPS):
        written = sum(path.stat().st_size for path in killed.glob("runs/*/events.jsonl"))
        process = qatline(killed, *(["resume"] if place else ["run", *OVERRIDES]))
        wait_for(lambda step=step, since=written: started(killed, step, since), f"step {step}")  # type: ignore[misc]
        # Every second time the command itself is killed, and the step has to follow it.
        step_process = wait_for(lambda parent=process.pid: executor_of(parent), "its process")  # type: ignore[misc]
        os.kill(step_process if place % 2 else process.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=120)
        assert process.returncode != 0, f"step {step} was over before it could be killed: {err}"
        wait_for(lambda pid=step_process: not Path(f"/proc/{pid}").exists(), "the end of the step")  # type: ignore[misc]
    result = finished(qatline(killed, "resume", "--json"))
    assert [each["name"] for each in result["steps"]] == STEPS
    assert [each["status"] for each in result["steps"]][:-1] == ["reused"] * (len(STEPS) - 1)
    (record,) = killed.glob("runs/*/run.json")
    assert json.loads(record.read_text())["attempts"] == len(STEPS) + 1
    assert not list((killed / "runs" / "store").rglob("*.tmp"))

    untouched = tmp_path / "untouched"
    untouched.mkdir()
    reference = finished(qatline(untouched, "run", *OVERRIDES, "--json"))
    for row, values in reference["results"].items():
        assert result["results"][row]["quality"]["accuracy"] == values["quality"]["accuracy"]
    assert result["gate"]["verdict"] == reference["gate"]["verdict"]
