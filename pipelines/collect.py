"""Gather what the steps left behind: links to their outputs, and the result of the run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from components.evaluation.rows import ROWS
from components.runtime.atomic_file import unfinished_name, written_beside
from pipelines.event_tail import EventTail
from pipelines.run_folder import RunFolder
from pipelines.steps import STEP_ARTIFACTS, step_of_task
from qat_lib.errors import StepError


def link_artifacts(folder: RunFolder, outputs: Path) -> dict[str, Path]:
    """Link each step's output as ``artifacts/<name>``; return the links by name.

    The links give the outputs one place that does not change when a run is resumed.

    Args:
        folder: The run.
        outputs: Where KFP put the outputs of this attempt, as ``<pipeline>-<time>/<task>/<name>``.
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
        beside.replace(link)
        links[name] = link
    return links


def collect_result(folder: RunFolder, artifacts: dict[str, Path], *, since: int) -> dict[str, Any]:
    """Put the result of a finished run together, in the form of ``qatline run --json``.

    Args:
        folder: The run.
        artifacts: The output directory of each step, by the artifact's name.
        since: Size in bytes of the event file when this attempt began; what is before it belongs to
            attempts that were cut short.
    """
    evaluation = _read(artifacts, "evaluation", "evaluation.json")
    verdict = _read(artifacts, "promotion", "verdict.json")
    return {
        "run_id": folder.run_id,
        "run_dir": str(folder.path),
        "steps": finished_steps(folder, since=since),
        "results": {
            row: values for row in ROWS if (values := evaluation.get("results", {}).get(row))
        },
        "gate": {"verdict": verdict.get("verdict"), "reasons": verdict.get("reasons", [])},
        "report": _copy_report(folder, artifacts),
    }


def finished_steps(folder: RunFolder, *, since: int) -> list[dict[str, Any]]:
    """Return name, status and seconds of each step whose end stands after byte ``since`` of the event file."""
    return [
        {
            "name": event["step"],
            "status": event.get("status", "executed"),
            "seconds": event.get("seconds"),
        }
        for event in EventTail(path=folder.events_file, offset=since).read()
        if event.get("event") == "step_finished"
    ]


def _read(artifacts: dict[str, Path], name: str, file: str) -> dict[str, Any]:
    if name not in artifacts:
        return {}
    path = artifacts[name] / file
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepError(
            f"Expected {file} from the step that writes {name!r}; {path} can't be read: {error}"
        ) from error
    return content if isinstance(content, dict) else {}


def _copy_report(folder: RunFolder, artifacts: dict[str, Path]) -> str | None:
    source = artifacts["promotion"] / "report.html" if "promotion" in artifacts else None
    if source is None or not source.is_file():
        return None
    with written_beside(folder.report_file) as unfinished:
        shutil.copyfile(source, unfinished)
    return str(folder.report_file)
