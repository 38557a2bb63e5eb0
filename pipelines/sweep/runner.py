"""Execution of a sweep on this machine: trials as runs that share the step store."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from qat_lib.errors import ConfigError, QatlineError, StorageError
from qat_lib.support.locks import LockTimeoutError, file_lock
from qatline.components.artifacts import Baseline, Dataset, FineTuned, Quantized
from qatline.components.artifacts.models import VALIDATION
from qatline.components.support.turns import TURNS_VARIABLE
from qatline.components.support.user_code import find_user_modules
from qatline.components.tasks import open_task
from qatline.pipelines.run.folder import RunFolder, create_run, flatten_config
from qatline.pipelines.run.local import RunFailedError, RunInterruptedError, execute
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.progress_view import ProgressView
from qatline.pipelines.run.result import RunResult
from qatline.pipelines.sweep.measures import Goal, TrialBound, TrialMeasures
from qatline.pipelines.sweep.space import Parameter, Space, trial_config
from qatline.pipelines.sweep.study import SamplerName, SweepStudy, SweepTrial, open_study

_POLL = 0.2  # seconds
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SweepInterruptedError(QatlineError):
    """A signal of the user or the system ended the sweep."""

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A sweep.

    Attributes:
        folder: folder of its database and results.
        space: the varied keys.
        sampler: order of the trials.
        trials: number of trials; ignored for a grid.
        workers: number of concurrent trials.
        goal: measure of the best trial.
        bounds: conditions on the best trial.
        prune: largest drop of the calibrated model on the validation part; None for no pruning.
        cpus: number of CPUs of all trials together; None for all.
        version: version of qatline.
    """

    folder: Path
    space: Space
    sampler: SamplerName = "grid"
    trials: int = 20
    workers: int = 1
    goal: Goal = "quality"
    bounds: Sequence[TrialBound] = ()
    prune: float | None = None
    cpus: int | None = None
    version: str = ""

    def identity(self) -> dict[str, Any]:
        """Return the options and settings that a resumed sweep must repeat."""
        found: dict[str, Any] = {
            "--over": [_over(each) for each in self.space.parameters],
            "--sampler": self.sampler,
        }
        if self.sampler == "tpe":
            found["--best"] = self.goal
        for key, value in flatten_config(self.space.config({}).to_dict()).items():
            if not key.startswith(("cluster.", "tracking.")):
                found[key] = value
        return found


def _over(parameter: Parameter) -> str:
    if not parameter.is_range:
        return f"{parameter.key}={','.join(parameter.values)}"
    ends = "..".join(parameter.samples)
    return f"{parameter.key}={ends}{':log' if parameter.log else ''}"


Announce = Callable[[SweepTrial], ProgressView]
"""Called at the start of a trial; returns the view of its run."""


def run_sweep(
    plan: SweepPlan, pipeline: str, announce: Announce, ended: Callable[[SweepTrial], None]
) -> list[SweepTrial]:
    """Run the trials that are left, and return all trials in order.

    Args:
        plan: the sweep. If its folder contains an interrupted one, that one is resumed.
        pipeline: pipeline of the trials, as ``module:function``.
        announce: called at the start of a trial.
        ended: called at the end of a trial.

    Raises:
        ConfigError: the folder contains another sweep.
        StorageError: the folder can't be written, its database is damaged, or another process
            uses it.
        RunFailedError: a trial failed in a step that all trials have in common.
        SweepInterruptedError: a signal ended the sweep.
    """
    with _held(plan.folder):
        study = open_study(
            plan.folder,
            plan.space,
            plan.identity(),
            sampler=plan.sampler,
            most=plan.trials,
            seed=plan.space.config({}).seed,
            prune=plan.prune,
        )
        with _signals() as signals, _turns(plan):
            if plan.cpus is not None:  # inherited by the processes of the trials
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.cpus])
            _run_trials(plan, pipeline, study, announce, ended, signals)
        return study.trials()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / ".lock", owner=str(os.getpid()), patience=2.0):
            yield
    except LockTimeoutError as error:
        raise StorageError(
            f"The sweep in {folder} is run by another process (pid {error.holder or 'unknown'}). "
            "Wait until it has ended, or choose another folder with --output-dir."
        ) from error
    except FileExistsError as error:
        raise ConfigError(
            f"--output-dir: expected a folder, received the file {folder}."
        ) from error


@contextmanager
def _turns(plan: SweepPlan) -> Iterator[None]:
    """Let the timed steps of concurrent trials run alone."""
    if plan.workers == 1:
        yield
        return
    os.environ[TURNS_VARIABLE] = str(plan.folder.absolute() / ".turns")
    try:
        yield
    finally:
        del os.environ[TURNS_VARIABLE]


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list that receives the numbers of signals."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run_trials(
    plan: SweepPlan,
    pipeline: str,
    study: SweepStudy,
    announce: Announce,
    ended: Callable[[SweepTrial], None],
    signals: list[int],
) -> None:
    stopping = threading.Event()
    running: dict[Future[RunResult], SweepTrial] = {}
    with ThreadPoolExecutor(plan.workers) as pool:
        try:
            while not signals:
                while len(running) < plan.workers and (trial := study.next()) is not None:
                    view = announce(trial)
                    running[pool.submit(_run_trial, plan, pipeline, trial, view, stopping)] = trial
                if not running:
                    return
                done, _ = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED)
                for future in done:
                    trial = running.pop(future)
                    _finish(plan, trial, future)
                    ended(trial)
        finally:
            # Before the pool waits for its threads.
            stopping.set()
    raise SweepInterruptedError(
        f"Interrupted by {signal.Signals(signals[0]).name}. Finished trials and steps are kept; "
        "repeat the command to resume the sweep.",
        signal_number=signals[0],
    )


def _run_trial(
    plan: SweepPlan, pipeline: str, trial: SweepTrial, view: ProgressView, stopping: threading.Event
) -> RunResult:
    config = trial_config(plan.space.config(trial.settings))
    folder = RunFolder(path=Path(config.output).absolute() / trial.run_id)
    again = bool(trial.run_id) and folder.record_file.exists()
    if not again:
        folder = create_run(config, pipeline=pipeline, cache=True, version=plan.version)
        trial.start(folder.run_id)

    judged = plan.prune is None

    def check(progress: RunProgress) -> None:
        nonlocal judged
        if stopping.is_set():
            raise RunInterruptedError("Interrupted.", folder=folder, signal_number=signal.SIGINT)
        calibrated = progress.steps.get(Quantized.STEP)
        if judged or calibrated is None or not calibrated.results:
            return
        judged = True
        drop = calibrated_drop(folder, progress)
        if drop is not None and trial.is_hopeless(drop):
            reason = f"the calibrated model loses {drop:.2%} on the validation part"
            raise HopelessTrialError(reason, folder=folder, signal_number=signal.SIGTERM)

    return execute(folder, view, again=again, check=check).result


class HopelessTrialError(RunInterruptedError):
    """The pruner stopped a run."""


def calibrated_drop(folder: RunFolder, progress: RunProgress) -> float | None:
    """Return the loss of the calibrated model on the validation part, against the FP32 model.

    For metrics other than shares, a share of the FP32 model's value. None before the calibration,
    or if the run fine-tunes no more.
    """
    steps = progress.steps
    stages = [steps.get(name) for name in (Dataset.STEP, Baseline.STEP, Quantized.STEP)]
    if not all(stages) or (FineTuned.STEP in steps and steps[FineTuned.STEP].results):
        return None
    dataset = next(folder.attempt_dir(folder.record().attempts).glob("*/*/dataset"), None)
    if dataset is None:
        return None
    find_user_modules()
    metric = open_task(Dataset(dataset).info()).primary
    before, after = (each.results.get(f"{VALIDATION}_{metric.name}") for each in stages[1:] if each)
    if before is None or after is None:
        return None
    loss = metric.loss(after, before)
    return loss if metric.share else loss / (abs(before) or 1.0)


def _finish(plan: SweepPlan, trial: SweepTrial, future: Future[RunResult]) -> None:
    try:
        trial.finish(TrialMeasures.of(future.result()), plan.goal, plan.bounds)
    except HopelessTrialError as error:
        trial.end("pruned", str(error))
    except RunFailedError as error:
        trial.end("failed", str(error))
        if _is_common(plan, error.step):
            raise
    except ConfigError as error:  # sampled values that contradict each other
        trial.end("failed", str(error))


def _is_common(plan: SweepPlan, step: str) -> bool:
    """Return whether a step and those before it read none of the varied keys."""
    from qatline.components.runtime.steps import load_step
    from qatline.components.step_table import STEPS

    varied = {each.key.partition(".")[0] for each in plan.space.parameters}
    if "seed" in varied:
        return False
    for each in STEPS:
        if varied & set(load_step(each.name).sections):
            return False
        if each.name == step:
            return True
    return False
