"""Launcher: run one pipeline with kfp.local in a separate process.

``qatline.pipelines.run.local`` starts ``python -m qatline.pipelines.run.launch RUN_DIR`` and
displays its progress. The process is separate because kfp prints to stdout and leaves ``print``
patched, and because a light parent prints its first line while the launcher still imports kfp. The
environment configures the steps: the event file, the step store and the parent MLflow run.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from qat_lib.errors import QatlineError, StepError
from qatline.components.registry.facts import INPUTS_VARIABLE
from qatline.components.step_table import STEPS
from qatline.components.store.step_store import RUN_VARIABLE, STORE_VARIABLE
from qatline.components.support.disk_errors import as_storage_error, is_disk_full
from qatline.components.support.events import EVENTS_VARIABLE, emit
from qatline.components.support.process import LAUNCHER_VARIABLE, collect_rarely, follow
from qatline.components.support.scrubbed_output import scrub_output
from qatline.components.support.user_code import find_user_modules
from qatline.components.tracking.tracker import tracking_mode
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.collect import collect_result, link_artifacts
from qatline.pipelines.run.event_tail import file_size
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.local import MAIN_PIPELINE
from qatline.pipelines.run.novelty import inputs_fingerprint, judged_before
from qatline.pipelines.run.record import write_json
from qatline.pipelines.run.result import GateResult, RunResult
from qatline.pipelines.run.reuse import find_stored, take_stored
from qatline.pipelines.run.temporary import temporary_folder
from qatline.pipelines.run.tracking import ParentRun, open_parent_run
from qatline.pipelines.steps import step_of_task


class StepStoppedError(StepError):
    """A step's process failed; its own error event contains the reason."""

    def __init__(self, step: str) -> None:
        super().__init__(f"step {step} stopped")
        self.step = step


def launch_folder(arguments: list[str]) -> int:
    """Run the pipeline of a run folder; return the process exit code."""
    scrub_output()  # kfp forwards the steps' output: both become the run's log
    collect_rarely()
    folder = RunFolder(path=Path(arguments[0]))
    signal.signal(signal.SIGTERM, _end_with_children)
    follow(int(arguments[1]), signal.SIGTERM)
    os.environ[EVENTS_VARIABLE] = str(folder.events_file)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        # kfp leaves a temporary folder per step behind; they are removed with the run.
        with temporary_folder(folder.run_id):
            launch(folder)
    except StepStoppedError as error:  # the step reported its error unless it was killed
        emit("stopped", error.step)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last frame of a process: told to the parent, which reports it
        reason = as_storage_error(error, folder.path) if is_disk_full(error) else error
        known = isinstance(reason, QatlineError)
        exit_code = reason.exit_code if isinstance(reason, QatlineError) else 1
        emit(
            "error",
            "",
            type=type(reason).__name__,
            message=str(reason),
            exit_code=exit_code,
            expected=known,
        )
        with contextlib.suppress(OSError):  # the log may be on the full disk
            traceback.print_exc()
        return exit_code
    return 0


def launch(folder: RunFolder) -> None:
    """Run the pipeline of ``folder`` and write its ``result.json``.

    Raises:
        StepStoppedError: a step failed.
        StepError: a required output of a step is missing.
        TrackingError: the tracking store is unusable and the config requires it.
    """
    config, record = folder.config(), folder.record()
    os.environ[STORE_VARIABLE] = str(folder.store_dir(shared=record.cache))
    os.environ[RUN_VARIABLE] = folder.run_id
    os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Private by default: MLflow's usage reports are opt-in.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # kfp copies what a step prints; without this it comes in blocks, and the last one is lost with
    # a killed step.
    os.environ["PYTHONUNBUFFERED"] = "1"
    find_user_modules()  # the pipeline itself may be a user module
    emit("message", "", message="opening the tracking store")
    with open_parent_run(folder, config) as parent:
        before = file_size(folder.events_file)
        if known := _nothing_new(config):
            finish_early(folder, parent, known)
            return
        outputs = folder.attempt_dir(record.attempts)
        with parent.recording(outputs) if parent else contextlib.nullcontext():
            _run_steps(record.pipeline, config, outputs)
        emit("message", "", message="collecting the results")
        artifacts = link_artifacts(folder, outputs)
        result = collect_result(folder, artifacts, since=before)
        if parent:
            result = parent.finish(result, artifacts)
    write_json(folder.result_file, result.to_dict())


def _run_steps(name: str, config: RunConfig, outputs: Path) -> None:
    """Run a pipeline's steps, without leading ones with results in the store."""
    if name != MAIN_PIPELINE:
        emit("message", "", message="loading the pipeline")
        pipeline = load_pipeline(name)
        emit("pipeline_started", "", steps=step_names(pipeline))
        run_pipeline(pipeline, config.pipeline_parameters(), outputs)
        return
    # Steps may depend on the tracking store, for example on the champion: it is open by now.
    stored = find_stored(STEPS, config.sections(), seed=config.seed)
    emit("pipeline_started", "", steps=[step.name for step in STEPS])
    copies = take_stored(stored, outputs, seed=config.seed)
    if len(copies) < len(STEPS):
        emit("message", "", message="loading the pipeline")
        from qatline.pipelines.qat_pipeline import build_pipeline, qat_pipeline

        rest = build_pipeline(stored=copies) if copies else qat_pipeline
        run_pipeline(rest, config.pipeline_parameters(), outputs)


def _nothing_new(config: RunConfig) -> str:
    """Return the reason for skipping the run; empty if it must run.

    The fingerprint is passed to the promotion through the environment and becomes a tag of the
    version.
    """
    if config.registry.name is None or tracking_mode() == "off":
        return ""
    from qatline.components.registry.access import run_registry

    fingerprint = inputs_fingerprint(config)
    os.environ[INPUTS_VARIABLE] = fingerprint
    registry = run_registry(config.registry) if config.retrain.only_new else None
    return judged_before(registry, fingerprint) if registry is not None else ""


def finish_early(folder: RunFolder, parent: ParentRun | None, reason: str) -> None:
    """Record a run without new inputs."""
    emit("pipeline_started", "", steps=[])
    result = RunResult(
        run_id=folder.run_id,
        run_dir=str(folder.path),
        steps=[],
        rows={},
        gate=GateResult(verdict=None, reasons=()),
        nothing_new=reason,
    )
    if parent:
        result = parent.finish(result, {})
    write_json(folder.result_file, result.to_dict())


def load_pipeline(name: str) -> Callable[..., Any]:
    """Return the KFP pipeline ``module:function``."""
    module, _, attribute = name.partition(":")
    pipeline: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return pipeline


def step_names(pipeline: Any) -> list[str]:
    """Return a compiled pipeline's step names in dependency order."""
    tasks = pipeline.pipeline_spec.root.dag.tasks
    ordered: list[str] = []
    # Terminates: the tasks of a KFP pipeline form an acyclic graph.
    while len(ordered) < len(tasks):
        ordered += [
            name
            for name, task in tasks.items()
            if name not in ordered and all(other in ordered for other in task.dependent_tasks)
        ]
    return [step_of_task(name) for name in ordered]


def run_pipeline(pipeline: Callable[..., Any], parameters: dict[str, Any], root: Path) -> None:
    """Run a pipeline as real component executions, one process per step.

    Raises:
        StepStoppedError: a step failed or was killed.
    """
    from kfp import local

    root.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # Images don't matter here, and the local runner takes no resource requests: both are meant
        # for a cluster.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"kfp\.")
        warnings.filterwarnings("ignore", category=UserWarning, module=r"kfp\.")
        local.init(
            runner=local.SubprocessRunner(use_venv=False),
            pipeline_root=str(root),
            raise_on_error=True,
        )
        try:
            pipeline(**_known(pipeline, parameters))
        except RuntimeError as error:
            # kfp.local reports the failed task only in the colored text of a RuntimeError.
            failed = re.findall(r"'([\w-]+)'", re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
            raise StepStoppedError(step_of_task(failed[-1]) if failed else "") from error


def _known(pipeline: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that a pipeline accepts; small pipelines omit some sections."""
    taken = set(pipeline.pipeline_spec.root.input_definitions.parameters)
    return {name: value for name, value in parameters.items() if name in taken}


def _end_with_children(signal_number: int, _frame: FrameType | None) -> None:
    """Terminate the process group's steps first: kfp would wait for them."""
    # The signal to the group also reaches this process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGTERM)
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    sys.exit(launch_folder(sys.argv[1:]))
