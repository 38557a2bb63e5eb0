"""Execution of a sweep: trials as runs on this machine that share the step store."""

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
from qatline.pipelines.cluster.progress import ClusterRunError
from qatline.pipelines.run.folder import RunFolder, create_run, flatten_config
from qatline.pipelines.run.local import RunFailedError, RunInterruptedError, execute
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.progress_view import ProgressView
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
        host: address of the Kubeflow Pipelines server of the runs; empty for this machine.
        tracking_uri: address of the MLflow server of such runs from this machine; None for that of
            the config.
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
    host: str = ""
    tracking_uri: str | None = None
    version: str = ""

    def identity(self) -> dict[str, Any]:
        """Return the options and settings to repeat in a resumed sweep."""
        found: dict[str, Any] = {
            "--over": [_over(each) for each in self.space.parameters],
            "--sampler": self.sampler,
        }
        if self.sampler == "tpe":
            found["--best"] = self.goal
        if self.host:
            found["--host"] = self.host
        for key, value in flatten_config(self.space.config({}).to_dict()).items():
            if not key.startswith(("cluster.", "tracking.")):
                found[key] = value
        return found


def _over(parameter: Parameter) -> str:
    if not parameter.is_range:
        return f"{parameter.key}={','.join(parameter.values)}"
    ends = "..".join(parameter.samples)
    return f"{parameter.key}={ends}{':log' if parameter.log else ''}"


TrialRun = Callable[[threading.Event], TrialMeasures]
"""Runs a trial to its end, and returns its measures; the event tells it to stop."""


def run_sweep(
    plan: SweepPlan,
    start: Callable[[SweepTrial], TrialRun],
    ended: Callable[[SweepTrial], None],
) -> list[SweepTrial]:
    """Run the remaining trials, and return all trials in order.

    Args:
        plan: the sweep. If its folder contains an interrupted one, that one is resumed.
        start: called at the start of a trial.
        ended: called at the end of a trial.

    Raises:
        ConfigError: the folder contains another sweep.
        StorageError: the folder can't be written, its database is damaged, or another process
            uses it.
        RunFailedError, ClusterRunError: a trial failed in a step that all trials have in common.
        ClusterError: the server of the runs cannot be reached or refuses.
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
            _run_trials(plan, study, start, ended, signals)
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
    study: SweepStudy,
    start: Callable[[SweepTrial], TrialRun],
    ended: Callable[[SweepTrial], None],
    signals: list[int],
) -> None:
    stopping = threading.Event()
    running: dict[Future[TrialMeasures], SweepTrial] = {}
    with ThreadPoolExecutor(plan.workers) as pool:
        try:
            while not signals:
                while len(running) < plan.workers and (trial := study.next()) is not None:
                    running[pool.submit(start(trial), stopping)] = trial
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


def run_here(
    plan: SweepPlan, trial: SweepTrial, view: ProgressView, pipeline: str, stopping: threading.Event
) -> TrialMeasures:
    """Run a trial on this machine.

    Args:
        plan: the sweep.
        trial: the trial; its run is continued if it has one.
        view: view of the run.
        pipeline: the pipeline, as ``module:function``.
        stopping: interrupts the run.

    Raises:
        RunFailedError: a step failed.
        RunInterruptedError: the run was stopped, or pruned (``HopelessTrialError``).
        ConfigError: the trial's values contradict each other.
    """
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
        # The drop of a trial is judged once, after its calibration.
        if judged or calibrated is None or not calibrated.results:
            return
        judged = True
        drop = calibrated_drop(folder, progress)
        if drop is not None and trial.is_hopeless(drop):
            reason = f"the calibrated model loses {drop:.2%} on the validation part"
            raise HopelessTrialError(reason, folder=folder, signal_number=signal.SIGTERM)

    result = execute(folder, view, again=again, check=check).result
    return TrialMeasures.of(result.rows, result.gate.verdict)


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


def _finish(plan: SweepPlan, trial: SweepTrial, future: Future[TrialMeasures]) -> None:
    try:
        trial.finish(future.result(), plan.goal, plan.bounds)
    except HopelessTrialError as error:
        trial.end("pruned", str(error))
    except (RunFailedError, ClusterRunError) as error:
        trial.end("failed", str(error))
        if error.step in common_steps(plan):
            raise
    except ConfigError as error:  # sampled values that contradict each other
        trial.end("failed", str(error))


def common_steps(plan: SweepPlan) -> list[str]:
    """Return the first steps of the pipeline that read none of the varied keys, in order."""
    from qatline.components.runtime.steps import load_step
    from qatline.components.step_table import STEPS

    varied = {each.key.partition(".")[0] for each in plan.space.parameters}
    found: list[str] = []
    for each in STEPS:
        if "seed" in varied or varied & set(load_step(each.name).sections):
            break
        found.append(each.name)
    return found
