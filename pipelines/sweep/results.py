"""Results of a sweep: the best trial, its config, and the comparison of the trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import QatlineError
from qat_lib.files.whole_files import write_text
from qatline.pipelines.comparison.find_runs import RunChoice, find_runs
from qatline.pipelines.comparison.page import render_comparison
from qatline.pipelines.sweep.cluster_trials import cluster_runs
from qatline.pipelines.sweep.measures import rank_trials
from qatline.pipelines.sweep.runner import SweepPlan
from qatline.pipelines.sweep.space import TrialSettings
from qatline.pipelines.sweep.study import SweepTrial


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Result of a sweep.

    Attributes:
        trials: all trials in order.
        best: the best trial within the bounds; None for none.
        config: config of the best trial.
        page: comparison of the finished trials; None without records in MLflow.
    """

    trials: Sequence[SweepTrial]
    best: SweepTrial | None = None
    config: Path | None = None
    page: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "trials": [trial.to_dict() for trial in self.trials],
            "best": None if self.best is None else self.best.number,
            "config": None if self.config is None else str(self.config),
            "page": None if self.page is None else str(self.page),
        }


def write_results(plan: SweepPlan, trials: Sequence[SweepTrial]) -> SweepResult:
    """Write ``best.yaml`` and ``sweep.html`` to the folder of the sweep.

    Files without content, such as ``best.yaml`` without a trial within the bounds, are removed.
    """
    finished = [trial for trial in trials if trial.state == "finished"]
    order = rank_trials([trial.measured for trial in finished], plan.bounds, plan.goal)
    best = finished[order[0]] if order else None
    config, page = plan.folder / "best.yaml", plan.folder / "sweep.html"
    for old in (config, page):
        old.unlink(missing_ok=True)
    if best is not None:
        values = plan.space.config(best.settings).to_dict()
        write_text(config, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    if (text := _page(plan, finished)) is not None:
        write_text(page, text)
    return SweepResult(
        trials=trials,
        best=best,
        config=None if best is None else config,
        page=None if text is None else page,
    )


def _page(plan: SweepPlan, finished: Sequence[SweepTrial]) -> str | None:
    """Return the comparison page; None if a run is not recorded or no longer there."""
    names = [trial.run_id for trial in finished]
    if not names:
        return None
    if plan.host:
        choice = cluster_runs(plan, names)
    else:
        choice = RunChoice(names=names, output=Path(plan.space.config({}).output))
    try:
        runs = find_runs(choice, details=True)
    except QatlineError:
        return None
    named = []
    for trial, run in zip(finished, runs, strict=True):
        named.append(replace(run, name=f"trial {trial.number}: {settings_text(trial.settings)}"))
    return render_comparison(named, source=str(plan.folder.absolute()))


def settings_text(settings: TrialSettings) -> str:
    """Return settings as one line, with the last part of each key unless it is ambiguous."""
    names = [key.rpartition(".")[2] for key in settings]
    parts = []
    for (key, value), name in zip(settings.items(), names, strict=True):
        parts.append(f"{key if names.count(name) > 1 else name}={value}")
    return ", ".join(parts)
