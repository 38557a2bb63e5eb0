"""Comparison of runs as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qat_lib.pages.html import render_page
from qatline.components.artifacts.evaluation import primary_metric
from qatline.components.artifacts.variants import CANDIDATE, ROWS
from qatline.components.support.credentials import mask_values
from qatline.pipelines.comparison.charts import SHAPES, color_of, cost_pictures, curve_pictures
from qatline.pipelines.comparison.lines import comparison_lines, differing_settings
from qatline.pipelines.comparison.tracked_runs import TrackedRun, plan_differences


def render_comparison(runs: Sequence[TrackedRun], *, source: str) -> str:
    """Return one HTML document without external assets.

    Args:
        runs: the runs, read with details.
        source: origin of the runs, for the heading.
    """
    page = render_page(
        Path(__file__).with_name("compare.html.j2"),
        source=source,
        runs=[
            {"run": run, "color": color_of(index), "number": index + 1}
            for index, run in enumerate(runs)
        ],
        lines=_lines(runs),
        settings=differing_settings(runs),
        plans=plan_differences(runs),
        first=runs[0].name if runs else "",
        has_plans=any(run.plan is not None for run in runs),
        costs=cost_pictures(runs),
        curves=curve_pictures(runs),
        shapes=[
            (shape, ROWS[row])
            for row, shape in SHAPES.items()
            if any(run.row(row).value is not None for run in runs)
        ],
    )
    return mask_values(page)


def _lines(runs: Sequence[TrackedRun]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the names of the metrics with a text and a tone for each run."""
    metric = primary_metric({run.name: run.row(CANDIDATE) for run in runs})
    values = [value for run in runs if (value := run.row(CANDIDATE).value) is not None]
    best = (max if metric.higher_is_better else min)(values, default=None)
    lines = []
    for heading, cell in comparison_lines(runs):
        cells = []
        for run in runs:
            leads = heading == f"{ROWS[CANDIDATE]}: {metric.label}" and best is not None
            leads = leads and run.row(CANDIDATE).value == best
            cells.append((cell(run), "good" if leads else ""))
        lines.append((heading, cells))
    return lines
