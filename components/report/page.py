"""Assembly of the sections into one HTML page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from qat_lib.pages import numbers
from qat_lib.pages.graph import GraphView, draw_graph
from qat_lib.pages.html import render_page
from qatline.components.artifacts import Verdict
from qatline.components.artifacts.variants import (
    CANDIDATE_VARIANT,
    REFERENCE,
    in_order,
    reference_title,
    row_title,
)
from qatline.components.report import (
    checks,
    curves,
    environment,
    errors,
    layers_table,
    plan_table,
    ranges,
    speed,
)
from qatline.components.report import results as result_table
from qatline.components.report.sources import ReportFolders, RunData, read_run
from qatline.components.settings import GateSettings
from qatline.components.support.credentials import mask_values
from qatline.components.support.frameworks import FRAMEWORKS

_log = logging.getLogger(__name__)


def render_report(
    folders: ReportFolders,
    *,
    verdict: Verdict | Mapping[str, object],
    gate: GateSettings,
    seed: int,
) -> str:
    """Return the report as one HTML document without external assets.

    Args:
        folders: directories of the steps; missing files are reported in a sentence.
        verdict: verdict of the gate, or its JSON form.
        gate: the bounds of the verdict.
        seed: seed of the run.
    """
    page = render_page(
        Path(__file__).with_name("report.html.j2"),
        verdict=Verdict.model_validate(verdict),
        **_context(read_run(folders), gate, seed),
    )
    return mask_values(page)


def _context(run: RunData, gate: GateSettings, seed: int) -> dict[str, Any]:
    notes = list(run.notes)

    def attempt(what: str, build: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return build()
        except Exception as error:  # noqa: BLE001 - whatever a damaged file does to one section, the rest is still told
            _log.warning("report: %s can't be shown", what, exc_info=True)
            notes.append(f"{what} can't be shown: {type(error).__name__}: {error}")
            return otherwise

    skipped = attempt("the skipped layers", lambda: plan_table.skipped_rows(run), [])
    activations, weights = attempt("the ranges", lambda: ranges.range_rows(run), ([], []))
    panels, colors = attempt("the legend", lambda: errors.picture_legend(run), ([], {}))
    view, picture = attempt("the graph", lambda: _graph(run), (GraphView(), None))
    return {
        "reference": reference_title(run.measurements.row(REFERENCE).backend),
        "framework": FRAMEWORKS[run.model.framework].title,
        "model": run.model.name or run.plan.model or "model",
        "source": "" if run.dataset is None else run.dataset.source or run.dataset.kind,
        "samples": run.measurements.samples,
        "metric": run.measurements.metrics[0].heading,
        "headline": attempt("the headline", lambda: result_table.headline(run), []),
        "rows": attempt("the results", lambda: result_table.result_lines(run), []),
        "batch": attempt("the batch size", lambda: result_table.throughput_batch(run), ""),
        "speed": attempt("the speed by batch size", lambda: speed.speed_table(run), None),
        "speed_notes": run.measurements.speed,
        "agreement": attempt("the agreement", lambda: _agreement(run), []),
        "charts": attempt(
            "the curves",
            lambda: curves.training_charts(
                run.baseline_history, run.qat_history, run.measurements.metrics[0]
            ),
            [],
        ),
        "kept": attempt("the kept epoch", lambda: curves.kept_epoch(run.qat_history), ""),
        "activations": activations,
        "weights": weights,
        "view": view,
        "picture": picture,
        "layers": attempt("the layers", lambda: layers_table.layer_rows(run), []),
        "costs": attempt("the layers' costs", lambda: layers_table.cost_rows(run), []),
        "costs_about": layers_table.costs_about(run),
        "plan": attempt("the plan", lambda: plan_table.plan_rows(run), []),
        "skipped": skipped,
        "skipped_summary": plan_table.skipped_summary(skipped),
        "confusion": attempt("the confusion matrix", lambda: errors.confusion_rows(run), []),
        "classes": run.classes,
        "scatter": attempt("the predictions", lambda: errors.draw_scatter(run), ""),
        "task_curves": attempt("the curves of the task", lambda: errors.task_curves(run), []),
        "panels": panels,
        "colors": colors,
        "class_rows": attempt("the classes", lambda: errors.class_rows(run), []),
        "worst": attempt("the samples", lambda: errors.samples(run), []),
        "exports": attempt("the exports", lambda: checks.export_rows(run), []),
        "findings": attempt("the findings", lambda: checks.finding_rows(run), []),
        "environment": attempt(
            "the environment",
            lambda: environment.describe_environment(run, gate=gate, seed=seed),
            None,
        ),
        "notes": notes,
    }


def _graph(run: RunData) -> tuple[GraphView, Markup | None]:
    """Return the candidate's predicted engine with the built precisions, and its picture."""
    from qat_lib.analysis import analyze_onnx

    path = run.exported.graph(CANDIDATE_VARIANT)
    if not path.is_file():
        return GraphView(), None
    view = analyze_onnx(path).drawing
    built = layers_table.engine_precisions(run.layers)
    nodes = []
    for node in view.nodes:
        found = next((built[name] for name in node.names if name in built), None)
        lines = () if found is None else (f"in the built engine: {found}",)
        nodes.append(replace(node, details=(*node.details, *lines)))
    view = replace(view, nodes=tuple(nodes))
    return view, draw_graph(view)


def _agreement(run: RunData) -> list[tuple[str, str, str, list[tuple[str, str]]]]:
    """Return (row, share of predictions equal to FP32, other metrics) of each compared row."""
    rows, measured = [], run.measurements
    for name in in_order(measured.agreement):
        found, row = measured.agreement[name], measured.row(name)
        largest = numbers.significant(found.largest_difference)
        others = [
            (metric.label, result_table.quality(metric, row.quality.get(metric.name)))
            for metric in measured.metrics[1:]
        ]
        rows.append((row_title(name, row.backend), numbers.percent(found.same), largest, others))
    return rows
