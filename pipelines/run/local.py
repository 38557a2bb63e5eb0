"""Local execution of a pipeline.

It creates or resumes a run folder, starts the launcher and displays the progress.

The parent process is light: it imports neither kfp nor MLflow nor TensorFlow. It owns the folder's
lock, and the launcher and its steps exit with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from qat_lib.errors import QatlineError
from qatline.components.support.disk_errors import as_storage_error, is_disk_full
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.durations import expected_seconds
from qatline.pipelines.run.event_tail import EventTail, file_size
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.progress_view import ProgressView
from qatline.pipelines.run.record import read_record
from qatline.pipelines.run.result import RunResult
from qatline.pipelines.run.temporary import clear_temporary
from qatline.pipelines.steps import STEP_ARTIFACTS

MAIN_PIPELINE = "qatline.pipelines.qat_pipeline:qat_pipeline"
_POLL = 0.1  # seconds
_LOG_TAIL = 60  # lines
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL of a process group
_FULL = 1 << 20  # bytes; with less free space no useful file can be written


class RunFailedError(QatlineError):
    """A run ended without a result; the message names the step and the remedy."""

    def __init__(
        self, message: str, *, folder: RunFolder, step: str, exit_code: int, log_tail: str
    ) -> None:
        super().__init__(message)
        self.folder = folder
        self.step = step
        self.exit_code = exit_code
        self.log_tail = log_tail


class RunInterruptedError(QatlineError):
    """A signal of the user or the system ended the run."""

    def __init__(self, message: str, *, folder: RunFolder, signal_number: int) -> None:
        super().__init__(message)
        self.folder = folder
        self.exit_code = 128 + signal_number


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A finished run."""

    folder: RunFolder
    result: RunResult
    seconds: float
    warnings: list[str] = field(default_factory=list)


def execute(
    folder: RunFolder,
    view: ProgressView,
    *,
    again: bool = False,
    check: Callable[[RunProgress], None] | None = None,
) -> RunOutcome:
    """Run a folder's pipeline to its end, resuming an earlier attempt.

    Args:
        folder: a new run folder, or one to resume. Its step store provides finished steps.
        view: display of the progress.
        again: whether this is another attempt at an interrupted run.
        check: called about ten times per second in place of signal handlers, for runs in threads;
            it ends the run by raising RunInterruptedError.

    Raises:
        StorageError: another process holds the folder, or the disk is full.
        RunFailedError: a step or the launcher failed.
        RunInterruptedError: a signal ended the run.
    """
    try:
        return _execute(folder, view, again=again, check=check)
    except OSError as error:
        if is_disk_full(error):
            raise as_storage_error(error, folder.path) from error
        raise


def _execute(
    folder: RunFolder,
    view: ProgressView,
    *,
    again: bool,
    check: Callable[[RunProgress], None] | None,
) -> RunOutcome:
    started = time.monotonic()
    with folder.hold() as lock:
        record = folder.record()
        attempts = record.attempts + 1 if again else record.attempts
        folder.write_record(replace(record, status="running", ended=None, attempts=attempts))
        clear_temporary(folder.run_id)
        # Its presence marks a finished run: remove the result of an earlier attempt.
        folder.result_file.unlink(missing_ok=True)
        tail = EventTail.from_end(folder.events_file)
        progress = RunProgress.of(list(STEP_ARTIFACTS), expected_seconds(folder))
        log_start = file_size(folder.log_file)
        try:
            signals = _signals_raise(folder) if check is None else contextlib.nullcontext()
            with signals, view:
                code = _follow(_start(folder, lock), tail, progress, view, check)
        except RunInterruptedError:
            with contextlib.suppress(OSError):
                folder.finish("interrupted")
            raise
        finally:
            clear_temporary(folder.run_id)  # a killed launcher cannot remove them
        if code != 0 or not folder.result_file.exists():
            # A full disk must not hide the failure to report.
            with contextlib.suppress(OSError):
                folder.finish("failed")
            raise _failure(folder, progress, code, log_start)
        folder.finish("finished")
        result = RunResult.model_validate(read_record(folder.result_file))
    return RunOutcome(
        folder=folder, result=result, seconds=time.monotonic() - started, warnings=progress.warnings
    )


def resume_run(folder: RunFolder, config: RunConfig | None, view: ProgressView) -> RunOutcome:
    """Resume a run with its stored config.

    Args:
        folder: the run.
        config: config given by the user, if any; it must equal the stored one.
        view: display of the progress.

    Raises:
        ConfigError: the given config differs.
    """
    if config is not None:
        folder.check_same_config(config)
    return execute(folder, view, again=True)


def _start(folder: RunFolder, lock: Sequence[int]) -> subprocess.Popen[bytes]:
    folder.log_file.parent.mkdir(parents=True, exist_ok=True)
    # Without a safe path, ``-m`` searches the working directory first, where a user's folder may
    # shadow an installed package.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    with folder.log_file.open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "qatline.pipelines.run.launch",
                str(folder.path),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            # A group of its own: Ctrl-C reaches this process alone, which then ends the group in
            # order.
            start_new_session=True,
            # The launcher inherits the lock: the folder remains locked if this process is killed.
            pass_fds=lock,
        )


def _follow(
    process: subprocess.Popen[bytes],
    tail: EventTail,
    progress: RunProgress,
    view: ProgressView,
    check: Callable[[RunProgress], None] | None,
) -> int:
    try:
        while True:
            # Poll before reading: events written before the exit are then complete.
            code = process.poll()
            for event in tail.read():
                progress.apply(event)
                view.show(event, progress)
            if check is not None:
                check(progress)
            if code is not None:
                return code
            time.sleep(_POLL)
    finally:
        end_group(process)


@contextmanager
def _signals_raise(folder: RunFolder) -> Iterator[None]:
    """Raise RunInterruptedError on SIGINT, SIGTERM and SIGHUP."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise RunInterruptedError(
            f"Interrupted by {signal.Signals(number).name}. Finished steps are kept; "
            f"resume with: qatline resume {folder.run_id}",
            folder=folder,
            signal_number=number,
        )

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _failure(folder: RunFolder, progress: RunProgress, code: int, log_start: int) -> RunFailedError:
    error = progress.errors[-1] if progress.errors else None
    if error is None:
        step = progress.stopped or (progress.running.name if progress.running else "")
        message, exit_code = _silent_end(folder, progress, step, code), 1
    else:
        step, message = str(error.get("step") or ""), str(error.get("message"))
        if error.get("expected") is False:
            bug = "This is a bug in qatline; please report it with the log."
            message = f"{error.get('type')}: {message}\n{bug}"
        message = f"step {step} failed: {message}" if step else message
        if error.get("type") == "TrackingError":
            message += f"\nFinished steps are kept; go on with: qatline resume {folder.run_id}"
        exit_code = int(error.get("exit_code") or 1)
    return RunFailedError(
        f"{message}\nLog: {folder.log_file}",
        folder=folder,
        step=step,
        exit_code=exit_code,
        log_tail=_log_tail(folder.log_file, log_start),
    )


def _silent_end(folder: RunFolder, progress: RunProgress, step: str, code: int) -> str:
    """Return the probable cause of a process's end without an error event."""
    again = f"qatline resume {folder.run_id}"
    if shutil.disk_usage(folder.path).free < _FULL:
        return f"the disk is full: {folder.path} can't be written. Free some space, then: {again}"
    if not step:
        return (
            f"the launcher ended with code {code} before it could say why. See the log, "
            f"then: {again}"
        )
    if step not in progress.steps:
        return f"step {step} could not start. See the log."
    return (
        f"step {step} ended without a message: it was killed, or the machine ran out of memory. "
        f"Free some memory or use a smaller batch size, then: {again}"
    )


def _log_tail(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as stream:
        stream.seek(max(start, path.stat().st_size - 100_000))
        lines = [
            line for line in stream.read().decode(errors="replace").splitlines() if line.strip()
        ]
    traces = [
        place for place, line in enumerate(lines) if "Traceback (most recent call last)" in line
    ]
    return "\n".join(lines[traces[-1] :][:_LOG_TAIL] if traces else lines[-_LOG_TAIL:])


def end_group(process: subprocess.Popen[bytes], grace: float = _GRACE) -> None:
    """Terminate a child and its process group; kill them after ``grace`` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            # Even after the child's exit: its own children may still run.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
