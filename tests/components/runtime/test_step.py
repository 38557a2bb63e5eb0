"""The contract of a step: reuse, publication, events, errors."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest

from qat_lib.errors import ConfigError, DataError, MissingPackageError, StepError, StorageError
from qatline.components.runtime import step as step_module
from qatline.components.runtime.step import run_component
from qatline.components.runtime.steps import CHECKED, define_step
from qatline.components.settings import GateSettings, QATSettings
from qatline.components.store.directories import (
    describe,
    publish,
    read_step_manifest,
    verify_directory,
)
from qatline.components.support.events import Progress

ROOT = Path(__file__).parents[3]


class Bench:
    """Runs a fake step ``finetune_qat`` with store and event file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls = 0
        self.body: Callable[[Path], Mapping[str, float]] = self.write
        monkeypatch.setattr(step_module, "load_step", lambda name: define_step(name, self.function))
        # The real sources may be edited while the tests run.
        monkeypatch.setattr(step_module, "code_digest", lambda settings: "code")
        monkeypatch.setenv("QATLINE_EVENTS", str(folder / "events.jsonl"))
        monkeypatch.setenv("QATLINE_STORE", str(folder / "store"))
        self.make_input("one")

    def function(
        self, dataset: Path, out: Path, *, qat: QATSettings, seed: int, progress: Progress
    ) -> Mapping[str, float]:
        self.calls += 1
        progress.update("training", 1, 1, loss=0.5)
        (out / "model.txt").write_text(f"{(dataset / 'x').read_text()} {qat.learning_rate} {seed}")
        return self.body(out)

    @staticmethod
    def write(out: Path) -> Mapping[str, float]:
        return {"accuracy": 0.75}

    def make_input(self, text: str) -> None:
        work = self.folder / "work"
        work.mkdir()
        (work / "x").write_text(text)
        final = self.folder / "dataset"
        if final.exists():
            final.rename(self.folder / f"old{time.monotonic_ns()}")
        publish(work, final, describe(work))

    def run(self, output: str = "out", *, seed: int = 0, **qat: float) -> dict[str, float]:
        return run_component(
            "finetune_qat",
            settings={"qat": qat},
            seed=seed,
            inputs={"dataset": str(self.folder / "dataset")},
            output=str(self.folder / output),
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [event for event in lines if event["event"] == kind]

    def leftovers(self) -> list[str]:
        return [str(path) for path in self.folder.rglob(".*")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_step_is_executed_once_and_then_reused(bench: Bench) -> None:
    assert bench.run("first") == bench.run("second") == {"accuracy": 0.75}
    assert bench.calls == 1
    assert [event["status"] for event in bench.events("step_finished")] == ["executed", "reused"]
    assert (
        bench.folder / "second" / "model.txt"
    ).read_text() == f"one {QATSettings().learning_rate} 0"
    assert (
        verify_directory(bench.folder / "first").digest
        == verify_directory(bench.folder / "second").digest
    )
    assert bench.leftovers() == []


def test_events_tell_the_whole_story(bench: Bench) -> None:
    bench.run()
    assert [event["phase"] for event in bench.events("progress")] == ["training"]
    (started,), (finished,) = bench.events("step_started"), bench.events("step_finished")
    assert started["key"] == finished["key"]
    assert finished["metrics"] == {"accuracy": 0.75}
    assert finished["seconds"] >= 0


@pytest.mark.parametrize("change", ["settings", "seed", "input", "code"])
def test_what_changes_the_result_runs_again(
    bench: Bench, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    if change == "input":
        bench.make_input("two")
    if change == "code":
        monkeypatch.setattr(step_module, "code_digest", lambda settings: "another")
    bench.run(
        "again",
        seed=1 if change == "seed" else 0,
        **({"learning_rate": 0.5} if change == "settings" else {}),
    )
    assert bench.calls == 2


def test_the_same_settings_written_otherwise_are_reused(bench: Bench) -> None:
    bench.run(epochs=QATSettings().epochs)
    bench.run("again", epochs=float(QATSettings().epochs))
    bench.run("third")
    assert bench.calls == 1


def test_a_damaged_result_is_made_again(bench: Bench) -> None:
    bench.run()
    (entry,) = (bench.folder / "store" / "finetune_qat").iterdir()
    (entry / "model.txt").write_text("tampered with")
    bench.run("again")
    assert bench.calls == 2
    assert (
        bench.folder / "again" / "model.txt"
    ).read_text() == f"one {QATSettings().learning_rate} 0"
    (warning,) = bench.events("warning")
    assert (
        "the stored result of step finetune_qat is damaged and is computed again"
        in warning["message"]
    )
    assert "model.txt" in warning["message"]
    bench.run("third")
    assert bench.calls == 2
    assert bench.leftovers() == []


def test_without_a_store_the_output_itself_is_published(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QATLINE_STORE")
    (bench.folder / "out").mkdir()
    bench.run()
    bench.run("again")
    assert bench.calls == 2
    assert read_step_manifest(bench.folder / "out").metrics == {"accuracy": 0.75}
    assert not (bench.folder / "store").exists()
    assert bench.leftovers() == []


def test_metrics_reach_the_artifact_executed_or_reused(bench: Bench) -> None:
    class Metrics:
        def __init__(self) -> None:
            self.logged: dict[str, float] = {}

        def log_metric(self, metric: str, value: float) -> None:
            self.logged[metric] = value

    for name in ("first", "second"):
        metrics = Metrics()
        run_component(
            "finetune_qat",
            settings={},
            seed=0,
            inputs={"dataset": str(bench.folder / "dataset")},
            output=str(bench.folder / name),
            metrics_artifact=metrics,
        )
        assert metrics.logged == {"accuracy": 0.75}


def test_user_error_is_reported_and_raised(bench: Bench) -> None:
    def fail(out: Path) -> Mapping[str, float]:
        raise DataError("the images are upside down")

    bench.body = fail
    with pytest.raises(DataError, match="upside down"):
        bench.run()
    (event,) = bench.events("error")
    assert (event["type"], event["message"], event["exit_code"]) == (
        "DataError",
        "the images are upside down",
        1,
    )
    assert event["expected"] is True
    assert not (bench.folder / "out").exists()
    assert list((bench.folder / "store" / "finetune_qat").iterdir()) == []


def test_an_error_of_ours_is_told_as_such(bench: Bench) -> None:
    def fail(out: Path) -> Mapping[str, float]:
        raise KeyError("oops")

    bench.body = fail
    with pytest.raises(KeyError):
        bench.run()
    assert [(event["type"], event["expected"]) for event in bench.events("error")] == [
        ("KeyError", False)
    ]


def test_wrong_settings_have_the_exit_code_of_usage(bench: Bench) -> None:
    with pytest.raises(ConfigError):
        bench.run(epochs=-1)
    assert [event["exit_code"] for event in bench.events("error")] == [2]


def test_run_component_full_disk_raises_storage_error(
    bench: Bench,
) -> None:
    def fill(out: Path) -> Mapping[str, float]:
        (out / "half").write_bytes(bytes(1000))
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("the writer of the model gave up") from error

    bench.body = fill
    with pytest.raises(StorageError, match="the disk is full"):
        bench.run()
    assert [event["type"] for event in bench.events("error")] == ["StorageError"]
    assert list((bench.folder / "store" / "finetune_qat").iterdir()) == []


def test_an_input_that_is_not_finished_is_refused(bench: Bench) -> None:
    (bench.folder / "dataset" / "manifest.json").unlink()
    with pytest.raises(StorageError, match="not finished"):
        bench.run()
    assert bench.calls == 0


def test_an_input_that_was_cut_short_is_refused(bench: Bench) -> None:
    (bench.folder / "dataset" / "x").write_text("")
    with pytest.raises(StorageError, match="x has 0 bytes, expected 3"):
        bench.run()
    assert bench.calls == 0


def test_broken_data_in_tensorflow_is_reported(bench: Bench) -> None:
    unknown = type(
        "UnknownError", (Exception,), {"__module__": "tensorflow.python.framework.errors_impl"}
    )

    def fail(out: Path) -> Mapping[str, float]:
        raise unknown(
            "{{function_node}} DataError: the image cat/1.png is broken\nTraceback (most recent call last):"
        )

    bench.body = fail
    with pytest.raises(DataError, match=r"^the image cat/1\.png is broken$"):
        bench.run()
    assert [event["type"] for event in bench.events("error")] == ["DataError"]

    def fail_otherwise(out: Path) -> Mapping[str, float]:
        raise unknown("out of memory")

    bench.body = fail_otherwise
    with pytest.raises(unknown):
        bench.run()


def test_a_step_that_writes_nothing_has_failed(bench: Bench) -> None:
    def nothing(out: Path) -> Mapping[str, float]:
        (out / "model.txt").unlink()
        return {}

    bench.body = nothing
    with pytest.raises(StepError, match="wrote nothing"):
        bench.run()


def test_metrics_are_finite_numbers(bench: Bench) -> None:
    bench.body = lambda out: {"accuracy": 1, "loss": float("nan")}
    assert bench.run() == {"accuracy": 1.0}
    assert "loss" in bench.events("warning")[0]["message"]
    bench.body = lambda out: {"name": "resnet"}  # type: ignore[dict-item]
    with pytest.raises(StepError, match="metric name must be a number"):
        bench.run("again", seed=5)


STEP = """
    import os, sys, time
    from pathlib import Path
    from qatline.components.runtime import step
    from qatline.components.support.events import Progress
    from qatline.components.runtime.steps import CHECKED, define_step

    def prepare_data(out: Path, *, seed: int, progress: Progress) -> dict[str, float]:
        (out / "first").write_text("1")
        progress.update("working", 0, 1)
        time.sleep(float(sys.argv[2]))
        (out / "second").write_text(str(seed))
        return {"n": 2}

    step.load_step = lambda name: define_step(name, prepare_data)
    step.run_component("prepare_data", settings={}, seed=3, inputs={}, output=sys.argv[1])
    sys.stdout.write(" ".join(m for m in ("tensorflow", "mlflow", "keras", "numpy", "kfp") if m in sys.modules))
"""


def start(folder: Path, output: str, sleep: float) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "QATLINE_STORE": str(folder / "store"),
        "QATLINE_EVENTS": str(folder / "events.jsonl"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STEP), str(folder / output), str(sleep)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_in_the_middle_and_started_again(tmp_path: Path) -> None:
    first = start(tmp_path, "out", 60)
    deadline = time.monotonic() + 30
    events = tmp_path / "events.jsonl"
    while (
        not (events.exists() and '"working"' in events.read_text()) and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=30)
    assert not (tmp_path / "out").exists()
    # The work that was cut short, and the lock, which nobody holds any more.
    left = {path.suffix for path in (tmp_path / "store" / "prepare_data").iterdir()}
    assert left == {".tmp", ".lock"}

    again = start(tmp_path, "out", 0)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert (tmp_path / "out" / "second").read_text() == "3"
    assert [path.name for path in (tmp_path / "store" / "prepare_data").iterdir()] == [
        read_step_manifest(tmp_path / "out").key
    ]


def test_a_step_of_no_work_imports_nothing_heavy(tmp_path: Path) -> None:
    out, err = start(tmp_path, "out", 0).communicate(timeout=60)
    assert out == "", err


def test_two_processes_compute_a_key_once(tmp_path: Path) -> None:
    writers = [start(tmp_path, f"out{index}", 1) for index in range(2)]
    assert [writer.communicate(timeout=60)[1] for writer in writers] == ["", ""]
    assert [writer.returncode for writer in writers] == [0, 0]
    assert verify_directory(tmp_path / "out0").digest == verify_directory(tmp_path / "out1").digest
    assert len(list((tmp_path / "store" / "prepare_data").iterdir())) == 1
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert sorted(event["status"] for event in events if event["event"] == "step_finished") == [
        "executed",
        "reused",
    ]
    holders = {f"process {writer.pid} on {os.uname().nodename}" for writer in writers}
    assert {event["holder"] for event in events if event["event"] == "waiting"} <= {*holders, ""}


@pytest.mark.parametrize(
    ("step", "calls"), [("evaluate", 2), ("build_engine", 2), ("finetune_qat", 1)]
)
def test_machine_bound_steps_rerun_elsewhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str, calls: int
) -> None:
    for machine in ("one", "two"):
        monkeypatch.setattr(step_module, "machine_identity", lambda machine=machine: machine)
        inputs = {"dataset": str(bench.folder / "dataset")}
        run_component(step, settings={}, seed=0, inputs=inputs, output=str(bench.folder / machine))
    assert bench.calls == calls


def test_step_without_seed_is_reused_under_any(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def seedless(dataset: Path, out: Path, *, progress: Progress) -> Mapping[str, float]:
        calls.append(dataset)
        (out / "a").write_text("")
        return {}

    monkeypatch.setattr(step_module, "load_step", lambda name: define_step(name, seedless))
    for seed in (1, 2):
        inputs = {"dataset": str(bench.folder / "dataset")}
        run_component(
            "finetune_qat",
            settings={},
            seed=seed,
            inputs=inputs,
            output=str(bench.folder / str(seed)),
        )
    assert calls == [bench.folder / "dataset"]


def test_inputs_are_checked_by_size_only(bench: Bench) -> None:
    (bench.folder / "dataset" / "x").write_text("ONE")
    bench.run()
    assert bench.calls == 1


def test_times_of_a_step_are_its_own(bench: Bench) -> None:
    bench.run()
    (finished,) = bench.events("step_finished")
    assert 0 <= finished["seconds"] < 60
    assert 0 <= read_step_manifest(bench.folder / "out").seconds < 60


@pytest.mark.parametrize("inside", [False, True])
def test_output_is_scrubbed_only_inside_of_an_executor(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    scrubbed = []
    monkeypatch.setenv("_KFP_RUNTIME", "true" if inside else "")
    monkeypatch.setattr(step_module, "die_with_launcher", lambda: None)
    monkeypatch.setattr(step_module, "scrub_output", lambda: scrubbed.append("stdout"))
    bench.run()
    assert scrubbed == (["stdout"] if inside else [])


def test_user_folder_is_searched_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["first"])
    monkeypatch.chdir(bench.folder)
    bench.run()
    bench.run("again")
    assert sys.path == ["first", str(bench.folder)]


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (ModuleNotFoundError("No module named 'mlflow'", name="mlflow"), MissingPackageError, 1),
        (ImportError("cannot import name 'x'"), ImportError, 1),
        (KeyError("mlflow"), KeyError, 1),
    ],
)
def test_missing_package_names_its_fix(
    bench: Bench, error: Exception, told: type[Exception], code: int
) -> None:
    def fail(out: Path) -> Mapping[str, float]:
        raise error

    bench.body = fail
    with pytest.raises(told):
        bench.run()
    (event,) = bench.events("error")
    assert event["type"] == told.__name__
    assert told is MissingPackageError or event["exit_code"] == code


def test_a_metric_of_none_is_refused(bench: Bench) -> None:
    bench.body = lambda out: {"accuracy": None}  # type: ignore[dict-item]
    with pytest.raises(StepError, match="metric accuracy must be a number, received None"):
        bench.run()


def test_checked_section_is_no_part_of_the_key(bench: Bench) -> None:
    drops: list[float] = []

    def function(
        dataset: Path,
        out: Path,
        *,
        gate: Annotated[GateSettings, CHECKED],
        progress: Progress,
    ) -> Mapping[str, float]:
        drops.append(gate.max_drop)
        (out / "model.txt").write_text("model")
        return {}

    bench.function = function  # type: ignore[method-assign]
    for index, drop in enumerate((0.25, 0.5)):
        run_component(
            "finetune_qat",
            settings={"gate": {"max_drop": drop}},
            seed=0,
            inputs={"dataset": str(bench.folder / "dataset")},
            output=str(bench.folder / f"out{index}"),
        )
    assert drops == [0.25]
