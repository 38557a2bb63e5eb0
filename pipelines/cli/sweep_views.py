"""Display of a sweep: its trials while they run, and the table of their results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qat_lib.pages import numbers
from qatline.pipelines.cli.options import print_json
from qatline.pipelines.run.local import MAIN_PIPELINE
from qatline.pipelines.run.preflight import check_before_training
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.progress_view import ProgressView, SilentView, make_view
from qatline.pipelines.run.result_table import short_path
from qatline.pipelines.sweep.cluster_trials import ClusterTrials, check_for_cluster, check_records
from qatline.pipelines.sweep.results import SweepResult, settings_text, write_results
from qatline.pipelines.sweep.runner import SweepPlan, TrialRun, run_here, run_sweep
from qatline.pipelines.sweep.study import SweepTrial

_NONE = "-"
_STYLES = {"failed": "red", "reject": "red", "promote": "green"}


def sweep_command(
    plan: SweepPlan,
    *,
    as_json: bool,
    quiet: bool,
    pipeline: str = MAIN_PIPELINE,
    trials: ClusterTrials | None = None,
) -> SweepResult:
    """Run a sweep, show its results, and return them.

    Args:
        plan: the sweep.
        as_json: whether to print one JSON object and nothing else.
        quiet: whether to print only the result.
        pipeline: pipeline of the trials, as ``module:function``.
        trials: runs the trials on a cluster; None for this machine.

    Raises:
        QatlineError: anything that a user can act on.
    """
    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream, highlight=False)

    def say(text: str) -> None:
        if not quiet:
            console.print(Text(text), soft_wrap=True)

    def start(trial: SweepTrial) -> TrialRun:
        say(f"Trial {trial.number}: {settings_text(trial.settings)}")
        if trials is not None:
            return partial(trials.run, trial, lambda line: say(f"  trial {trial.number}: {line}"))
        view: ProgressView = _TrialView(console, trial.number)
        if plan.workers == 1 or quiet:
            view = make_view(stream, quiet=quiet)
        return partial(run_here, plan, trial, view, pipeline)

    def ended(trial: SweepTrial) -> None:
        say(f"Trial {trial.number} {trial.state}: {trial.problem or _measures(trial)}")

    # Fails for parameters without a grid, before the first trial.
    if plan.sampler == "grid":
        plan.space.grid()
    plan.space.check(check_before_training if trials is None else check_for_cluster)
    if trials is not None:
        check_records(plan)
    result = write_results(plan, run_sweep(plan, start, ended))
    if as_json:
        print_json(result.to_dict())
    else:
        _show(console, plan, result)
    return result


class _TrialView(SilentView):
    """Lines of one of several concurrent trials."""

    def __init__(self, console: Console, number: int) -> None:
        self._console, self._number = console, number

    def show(self, event: Mapping[str, Any], progress: RunProgress) -> None:
        """Print the end of a step, or a warning."""
        kind, name = event.get("event"), str(event.get("step") or "")
        if kind == "step_finished":
            step = progress.steps[name]
            done = (
                "reused" if step.status == "reused" else f"done in {numbers.seconds(step.seconds)}"
            )
            self._print(f"{name} {done}")
        elif kind == "warning":
            self._print(f"warning: {progress.warnings[-1]}")

    def _print(self, text: str) -> None:
        self._console.print(Text(f"  trial {self._number}: {text}"), soft_wrap=True)


def _measures(trial: SweepTrial) -> str:
    quality, drop, latency, size, state = _cells(trial)
    metric = trial.measured.metric.label
    return f"{metric} {quality}, drop {drop}, {latency} ms, {size}, {state}"


def _show(console: Console, plan: SweepPlan, result: SweepResult) -> None:
    console.print()
    console.print(_table(result))
    console.print()
    bounds = " and ".join(bound.text for bound in plan.bounds)
    suffix = f" with {bounds}" if bounds else ""
    if result.best is None:
        console.print(Text(f"No trial{suffix} was measured."), soft_wrap=True)
    else:
        text = f"Best {plan.goal}{suffix}: trial {result.best.number}"
        console.print(Text(text), soft_wrap=True)
        if result.best.measured.verdict == "reject":
            console.print(Text("The gate rejects every trial within the bounds."), soft_wrap=True)
    if result.config is not None:
        verb = "cluster submit" if plan.host else "run"
        text = f"Run it  qatline {verb} --config {short_path(result.config)}"
        console.print(Text(text), soft_wrap=True)
    if result.page is not None:
        console.print(Text(f"Page    {short_path(result.page)}"), soft_wrap=True)
    for trial in result.trials:
        if trial.state in ("failed", "pruned"):
            line = trial.problem.partition("\n")[0]
            console.print(Text(f"Trial {trial.number} {trial.state}: {line}"), soft_wrap=True)


def _table(result: SweepResult) -> Table:
    """Return the table of the trials, at most 80 columns wide.

    The drop is relative to the FP32 model of the trial, in percentage points of shares. Latencies
    are milliseconds at batch 1.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    measured = [trial.measured for trial in result.trials if trial.measured.quality is not None]
    metric = measured[0].metric.label if measured else "quality"
    table.add_column("", no_wrap=True, justify="right")
    table.add_column("settings", overflow="fold")
    for heading in (metric, "drop", "p50 ms", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for trial in result.trials:
        is_best = result.best is not None and trial.number == result.best.number
        *cells, state = _cells(trial)
        table.add_row(
            f"{'* ' if is_best else ''}{trial.number}",
            escape(settings_text(trial.settings)),
            *cells,
            Text("best" if is_best and state == "promote" else state, _STYLES.get(state, "")),
            style="bold" if is_best else "",
        )
    return table


def _cells(trial: SweepTrial) -> list[str]:
    found = trial.measured
    drop = _NONE
    if found.drop is not None:
        drop = f"{found.drop * 100:.2f}" if found.metric.share else f"{found.drop:.4g}"
    return [
        _NONE if found.quality is None else found.metric.text(found.quality),
        drop,
        _NONE if found.latency_ms is None else numbers.significant(found.latency_ms),
        _NONE if found.size is None else numbers.size(found.size),
        found.verdict or trial.state,
    ]
