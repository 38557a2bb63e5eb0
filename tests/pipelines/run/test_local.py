"""Whole runs with the real launcher, components and step store.

Only the work of the steps is small.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qatline.pipelines.run.local import end_group

STEPS = ["prepare_data", "train_baseline", "evaluate"]
Start = Callable[..., "subprocess.Popen[str]"]


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what} in vain"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_run_prints_steps_result_and_places(fake_cli: Any) -> None:
    # The user's own, which must not stand in for ours.
    for package in ("components", "pipelines", "kfp"):
        (fake_cli.folder / package).mkdir()
        (fake_cli.folder / package / "__init__.py").write_text("raise RuntimeError('not this one')")
    done = fake_cli("run", "--set", "model.options={prepare_data: {warn: one image left out}}")
    assert done.returncode == 0, done.stderr
    assert "warning: prepare_data: one image left out" in done.stdout
    for place, name in enumerate(STEPS, start=1):
        assert f"step {place}/3 {name}" in done.stdout
    assert "FP32 Keras" in done.stdout
    assert "90.00%" in done.stdout
    run = fake_cli.only_run()
    assert f"Run      runs/{run.name}" in done.stdout
    assert done.stderr == ""
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert (run / "artifacts" / "evaluation" / "evaluation.json").is_file()


@pytest.mark.matrix
def test_json_is_alone_on_stdout(
    fake_cli: Any,
) -> None:
    first = fake_cli("run", "--json")
    result = json.loads(first.stdout)
    assert first.stdout.count("\n") == 1
    assert [(step["name"], step["status"]) for step in result["steps"]] == [
        (name, "executed") for name in STEPS
    ]
    assert result["results"]["fp32"]["quality"]["accuracy"] == 0.9
    assert "step 1/3" in first.stderr
    # The seed and the model reach every fake step, the QAT section none.
    again = json.loads(fake_cli("run", "--json", "--quiet", "--set", "qat.epochs=9").stdout)
    assert [step["status"] for step in again["steps"]] == ["reused"] * 3
    assert again["run_id"] != result["run_id"]
    assert fake_cli.executed() == STEPS
    private = json.loads(fake_cli("run", "--json", "--no-cache").stdout)
    assert [step["status"] for step in private["steps"]] == ["executed"] * 3
    assert (Path(private["run_dir"]) / "store" / "evaluate").is_dir()


@pytest.mark.matrix_except("{error: DataError*")
@pytest.mark.parametrize(
    ("behaviour", "code", "message"),
    [
        (
            "{error: DataError, message: 'expected 10 classes, received 1'}",
            1,
            "expected 10 classes, received 1",
        ),
        ("{error: ConfigError, message: 'expected a, received b'}", 2, "expected a, received b"),
        ("{bug: oops}", 1, "ZeroDivisionError: oops\nThis is a bug in qatline"),
        ("{kill: true}", 1, "step train_baseline ended without a message: it was killed"),
    ],
)
def test_a_failing_step_is_named_without_traceback(
    fake_cli: Any, behaviour: str, code: int, message: str
) -> None:
    failed = fake_cli("run", "--set", f"model.options={{train_baseline: {behaviour}}}")
    assert failed.returncode == code
    assert message in failed.stderr
    assert "step train_baseline" in failed.stderr
    assert "Traceback" not in failed.stderr + failed.stdout
    assert f"Log: {fake_cli.only_run() / 'logs' / 'pipeline.log'}" in failed.stderr


@pytest.mark.matrix
def test_json_of_a_failure_has_the_error(fake_cli: Any) -> None:
    failed = fake_cli(
        "run", "--json", "--debug", "--set", "model.options={train_baseline: {error: DataError}}"
    )
    content = json.loads(failed.stdout)
    assert content["error"]["step"] == "train_baseline"
    assert "expected this, received that" in content["error"]["message"]
    assert content["run_dir"] == str(fake_cli.only_run())
    assert "Error: step train_baseline failed" in failed.stderr
    assert "Traceback" in failed.stderr
    assert "fake_steps.py" in failed.stderr
    resumed = fake_cli("resume", "--json")
    assert [step["status"] for step in json.loads(resumed.stdout)["steps"]] == [
        "reused",
        "executed",
        "executed",
    ]
    assert fake_cli.executed() == ["prepare_data", "train_baseline", "train_baseline", "evaluate"]


@pytest.mark.matrix_except("train_baseline-launcher")
@pytest.mark.parametrize(
    ("step", "victim"),
    [
        ("prepare_data", "step"),
        ("prepare_data", "parent"),
        ("train_baseline", "parent"),
        ("train_baseline", "launcher"),
        ("evaluate", "step"),
    ],
)
def test_a_run_that_is_killed_goes_on(
    fake_cli: Any, started: Start, step: str, victim: str
) -> None:
    parent = started("run", "--set", f"model.options={{{step}: {{sleep: 60}}}}")
    mark = fake_cli.runs / f"misbehaved-{step}"
    wait_for(mark.exists, f"step {step}")
    wait_for(lambda: mark.read_text() != "", "the mark of the step")
    step_pid, (launcher,) = int(mark.read_text()), children(parent.pid)
    os.kill({"parent": parent.pid, "launcher": launcher, "step": step_pid}[victim], signal.SIGKILL)
    _, err = parent.communicate(timeout=60)
    assert parent.returncode == (-signal.SIGKILL if victim == "parent" else 1), err
    for pid in (launcher, step_pid):
        wait_for(lambda pid=pid: not is_alive(pid), f"the end of process {pid}")  # type: ignore[misc]
    run = fake_cli.only_run()
    assert not (run / "result.json").exists()

    resumed = fake_cli("resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    place = STEPS.index(step)
    result = json.loads(resumed.stdout)
    assert [each["status"] for each in result["steps"]] == ["reused"] * place + ["executed"] * (
        3 - place
    )
    assert result["run_id"] == run.name
    assert result["results"]["fp32"]["bytes"] == len("seed 0 resnet_digits")
    assert json.loads((run / "run.json").read_text())["attempts"] == 2


@pytest.mark.matrix_except("2-130")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything_cleanly(
    fake_cli: Any, started: Start, number: signal.Signals, code: int
) -> None:
    parent = started("run", "--set", "model.options={train_baseline: {sleep: 60}}")
    mark = fake_cli.runs / "misbehaved-train_baseline"
    wait_for(lambda: mark.exists() and mark.read_text() != "", "the step")
    pids = [int(mark.read_text()), *children(parent.pid)]
    parent.send_signal(number)
    _, err = parent.communicate(timeout=60)
    assert parent.returncode == code
    run = fake_cli.only_run()
    assert f"qatline resume {run.name}" in err
    assert "Traceback" not in err
    assert not any(is_alive(pid) for pid in pids)
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.matrix
def test_killed_run_blocks_no_other_run(fake_cli: Any, started: Start) -> None:
    first = started("run", "--set", "model.options={train_baseline: {sleep: 60}}")
    wait_for((fake_cli.runs / "misbehaved-train_baseline").exists, "the step")
    second = started("run", "--json", "--set", "model.options={train_baseline: {sleep: 60}}")
    waits = '"waiting", "step": "train_baseline", "time"'
    wait_for(
        lambda: any(waits in path.read_text() for path in fake_cli.runs.glob("*/events.jsonl")),
        "the second run",
    )
    run = next(
        path.parent.name
        for path in fake_cli.runs.glob("*/events.jsonl")
        if waits not in path.read_text()
    )
    first.kill()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert f"step 2/3 train_baseline waiting for run {run} (process " in err
    assert [step["status"] for step in json.loads(out)["steps"]] == [
        "reused",
        "executed",
        "executed",
    ]
    statuses = {json.loads(path.read_text())["status"] for path in fake_cli.runs.glob("*/run.json")}
    assert statuses == {"running", "finished"}
    assert fake_cli("resume").returncode == 0
    assert {
        json.loads(path.read_text())["status"] for path in fake_cli.runs.glob("*/run.json")
    } == {"finished"}


@pytest.mark.matrix
def test_a_run_leaves_nothing_in_the_temporary_folder(
    fake_cli: Any, started: Start, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    slow = ("--set", "model.options={prepare_data: {sleep: 60}}")
    process = started("run", *slow, TMPDIR=str(temporary))
    mark = fake_cli.runs / "misbehaved-prepare_data"
    wait_for(lambda: mark.exists() and mark.read_text() != "", "the step")
    assert [path.name.partition("-")[0] for path in temporary.iterdir()] == ["qatline"]
    (launcher,) = children(process.pid)
    for pid in (process.pid, launcher):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(int(mark.read_text())), "the end of the step")
    assert fake_cli("resume", TMPDIR=str(temporary)).returncode == 0
    assert list(temporary.iterdir()) == []


@pytest.mark.matrix
def test_a_run_folder_in_use_is_refused(fake_cli: Any, started: Start) -> None:
    started("run", "--set", "model.options={train_baseline: {sleep: 60}}")
    wait_for((fake_cli.runs / "misbehaved-train_baseline").exists, "the step")
    run = fake_cli.only_run()
    other = fake_cli("resume", "--set", "qat.epochs=9")
    assert other.returncode == 2
    assert "was started with" in other.stderr
    refused = fake_cli("resume", run.name)
    assert refused.returncode == 1
    assert f"The run folder {run} is in use by another process" in refused.stderr
    assert json.loads((run / "run.json").read_text())["attempts"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run", "--set", "training.epoch=1"],
            "unknown key 'training.epoch'; did you mean 'training.epochs'?",
        ),
        (["resume"], "there is none to resume"),
        (["resume", "nope"], "received 'nope'"),
        (["run", "nope"], "unexpected extra argument"),
        (["run", "--config", "nope.yaml"], "Expected a config file at nope.yaml"),
        (["run", "--nope"], "No such option"),
    ],
)
def test_wrong_usage_ends_with_2(fake_cli: Any, arguments: list[str], message: str) -> None:
    wrong = fake_cli(*arguments)
    assert wrong.returncode == 2
    assert message in " ".join(wrong.stderr.replace("│", " ").split())
    assert "Traceback" not in wrong.stderr
    assert wrong.stdout == ""
    assert not list(fake_cli.folder.glob("runs/*/run.json"))


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SLEEP = "print(flush=True); time.sleep(300)"
POLITE = f"import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); {SLEEP}"
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; {SLEEP}"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(300)
"""


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_end_group_ends_by_force_what_ignores_sigterm() -> None:
    with start(STUBBORN) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())  # inherits the ignored signal
        try:
            end_group(process, grace=0.2)
            assert process.returncode == -signal.SIGKILL
            deadline = time.monotonic() + 10
            while is_running(child) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not is_running(child)
        finally:
            for pid in (process.pid, child):
                if is_running(pid):
                    os.kill(pid, signal.SIGKILL)


def test_end_group_lets_a_process_end_by_itself() -> None:
    with start(POLITE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end_group(process, grace=60)
        assert process.returncode == 7


def test_end_group_accepts_a_process_that_has_ended() -> None:
    with start("") as process:
        process.wait()
        end_group(process)
        assert process.returncode == 0
