"""Collection of the steps' outputs and the run's result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qat_lib.files.whole_files import unfinished_name, written_beside
from qatline.components.artifacts import Evaluation, Promotion, ResultRow
from qatline.components.artifacts.promotion import PromotionOutcome
from qatline.components.artifacts.variants import ROWS
from qatline.components.tracking.tracker import StepTimes
from qatline.pipelines.run.event_tail import EventTail
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.result import FinishedStep, GateResult, RunResult
from qatline.pipelines.steps import STEP_ARTIFACTS, step_of_task


def link_artifacts(folder: RunFolder, outputs: Path) -> dict[str, Path]:
    """Link each step's output as ``artifacts/<name>``; return the links by name.

    The links give the outputs a stable location across attempts.

    Args:
        folder: the run.
        outputs: KFP's outputs of this attempt, as ``<pipeline>-<time>/<task>/<name>``.
    """
    found: dict[str, Path] = {}
    for task in sorted(outputs.glob("*/*")):
        name = STEP_ARTIFACTS.get(step_of_task(task.name))
        if name is not None and (task / name).is_dir():
            found[name] = task / name
    links: dict[str, Path] = {}
    folder.artifacts_dir.mkdir(exist_ok=True)
    for name, target in found.items():
        link = folder.artifacts_dir / name
        beside = link.with_name(unfinished_name(name))
        beside.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
        # A rename replaces an existing link atomically; ``symlink_to`` fails if it exists.
        beside.replace(link)
        links[name] = link
    return links


def collect_result(folder: RunFolder, artifacts: Mapping[str, Path], *, since: int) -> RunResult:
    """Assemble the result of a finished run.

    Args:
        folder: the run.
        artifacts: output directory of each step, by the artifact's name.
        since: size of the event file in bytes at the start of this attempt; earlier events belong
            to interrupted attempts.

    Raises:
        StepError: a required output of a step is missing.
    """
    rows: dict[str, ResultRow] = {}
    speed: Sequence[str] = ()
    gate, report = GateResult(verdict=None, reasons=()), None
    registered: PromotionOutcome | None = None
    if "evaluation" in artifacts:
        measured = Evaluation(artifacts["evaluation"]).measurements()
        rows = {name: measured.rows[name] for name in ROWS if name in measured.rows}
        speed = measured.speed
    if "promotion" in artifacts:
        promotion = Promotion(artifacts["promotion"])
        verdict = promotion.verdict()
        gate = GateResult(verdict=verdict.verdict, reasons=verdict.reasons)
        report = _copy_report(folder, promotion)
        registered = promotion.outcome()
    result = RunResult(
        run_id=folder.run_id,
        run_dir=str(folder.path),
        steps=finished_steps(EventTail(path=folder.events_file, offset=since).read()),
        rows=rows,
        speed=speed,
        gate=gate,
        report=report,
    )
    return result if registered is None else result.model_copy(update={"registry": registered})


def finished_steps(events: Iterable[Mapping[str, Any]]) -> list[FinishedStep]:
    """Return the finished steps from the events of a run."""
    found = []
    for event in events:
        if event.get("event") == "step_finished":
            found.append(
                FinishedStep(
                    name=event["step"],
                    status=event.get("status", "executed"),
                    seconds=event.get("seconds"),
                )
            )
    return found


def stopped_steps(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the start events of the steps that started but did not finish."""
    started: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event.get("event") == "step_started":
            started[event["step"]] = event
        elif event.get("event") == "step_finished":
            started.pop(event["step"], None)
    return list(started.values())


def step_times(folder: RunFolder) -> dict[str, StepTimes]:
    """Return start and end of each step from the event file of the run.

    An executed step that a later attempt reused has the times of its execution.
    """
    found: dict[str, StepTimes] = {}
    executed: set[str] = set()
    for event in EventTail(path=folder.events_file).read():
        step, ended = event.get("step", ""), event.get("time")
        if event.get("event") != "step_finished" or not isinstance(ended, int | float):
            continue
        reused = event.get("status") == "reused"
        if reused and step in executed:
            continue
        started = ended - float(event.get("seconds") or 0.0)
        found[step] = StepTimes(started=int(started * 1000), ended=int(ended * 1000))
        if not reused:
            executed.add(step)
    return found


def _copy_report(folder: RunFolder, promotion: Promotion) -> str | None:
    if not promotion.report_file.is_file():
        return None
    with written_beside(folder.report_file) as unfinished:
        shutil.copyfile(promotion.report_file, unfinished)
    return str(folder.report_file)
