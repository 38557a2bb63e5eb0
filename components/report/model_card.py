"""Model card of a candidate, in Markdown: data, quality, limits, quantization and speed.

The sections follow Mitchell et al., Model Cards for Model Reporting, FAT* 2019.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qat_lib.pages import numbers
from qat_lib.pages.numbers import DASH
from qatline.components.artifacts.variants import (
    CANDIDATE,
    CANDIDATE_VARIANT,
    REFERENCE,
    in_order,
    row_title,
)
from qatline.components.report.results import quality
from qatline.components.report.sources import RunData

_MOST_GROUPS = 100
_NOT_STATED = "Not stated. Ask the owners of the data and of the FP32 model before publication."


def model_card(run: RunData, license: str | None = None) -> str:
    """Return the card of a run's INT8 model, without unmeasured figures.

    Args:
        run: the run's results.
        license: licence of the model, in one line. Default None: not stated.
    """
    measured = run.measurements
    row, reference = measured.row(CANDIDATE), measured.row(REFERENCE)
    name, metric = run.model.name or "Model", row.metric
    info = run.dataset
    sections = [
        f"# {name} in INT8",
        f"{name} ({run.model.framework}), quantized to INT8 by qatline. {metric.heading}: "
        f"{quality(metric, row.value)}, FP32: {quality(metric, reference.value)}, on "
        f"{measured.samples or 0:.0f} test samples.",
        "## Data",
    ]
    if info is not None:
        parts = ((part, f"{count:,}") for part, count in info.splits.items())
        sections += [
            f"Source: {info.source or info.kind}. SHA-256: `{info.fingerprint}`.",
            _table(("part", "samples"), parts),
            f"Task: {info.task}.",
        ]
    sections += ["## Quality", _table(("model", metric.heading), _qualities(run))]
    if measured.groups:
        shown = measured.groups[:_MOST_GROUPS]
        groups = (
            (
                str(group.name),
                f"{group.samples or 0:,.0f}",
                quality(metric, group.values.get(REFERENCE)),
                quality(metric, group.values.get(CANDIDATE)),
            )
            for group in shown
        )
        sections.append(_table(("class", "samples", "FP32", "INT8"), groups))
        if len(measured.groups) > len(shown):
            sections.append(f"And {len(measured.groups) - len(shown)} more classes.")
    sections += ["## Limits", *_limits(run), "## Licence", license or _NOT_STATED]
    sections += ["## Quantization", _table(("setting", "value"), _quantization(run))]
    sections += ["## Speed and size", _table(_SPEED, _speeds(run))]
    engine = run.engines.get(CANDIDATE_VARIANT)
    if engine is not None and engine.backend:
        device = engine.device.get("name") or "an unknown device"
        sections.append(f"Measured with {engine.backend} {engine.backend_version} on {device}.")
    return "\n\n".join(sections) + "\n"


_SPEED = ("engine", "latency at batch 1, median", "99 %", "throughput", "size")


def _qualities(run: RunData) -> Iterable[Sequence[str]]:
    rows = run.measurements.rows
    for name in in_order(rows):
        row = rows[name]
        if row.value is not None:
            yield row_title(name, row.backend), quality(row.metric, row.value)


def _limits(run: RunData) -> list[str]:
    measured = run.measurements
    metric = measured.row(CANDIDATE).metric
    known = [
        (value, group)
        for group in measured.groups
        if (value := group.values.get(CANDIDATE)) is not None
    ]
    texts = [
        "The figures hold for samples like those of the test part. Other cameras, places or "
        "populations were not measured."
    ]
    if known:
        known.sort(key=lambda pair: pair[0], reverse=not metric.higher_is_better)
        value, group = known[0]
        texts.append(
            f"The weakest class is {group.name}: {quality(metric, value)} on "
            f"{group.samples or 0:,.0f} samples."
        )
    if (check := measured.infrastructure_check) is not None:
        texts.append(f"Check of the engine file: {check.message or DASH}")
    return texts


def _quantization(run: RunData) -> Iterable[Sequence[str]]:
    row = run.measurements.row(CANDIDATE)
    if row.int8_layers is not None:
        yield "weighted layers in INT8", f"{row.int8_layers:.0f} of {row.weighted_layers or 0:.0f}"
    manifest = run.steps.get("quantize_model")
    if manifest is not None:
        samples = manifest.metrics.get("calibration_samples")
        if samples is not None:
            yield "calibration samples", f"{samples:,.0f}"
        for name, value in manifest.settings.get("quantization", {}).items():
            yield name.replace("_", " "), _text(value)
    tuned = run.steps.get("finetune_qat")
    if tuned is not None:
        for name in ("epochs", "learning_rate", "distillation"):
            if name in (settings := tuned.settings.get("qat", {})):
                yield f"fine-tuning: {name.replace('_', ' ')}", _text(settings[name])


def _speeds(run: RunData) -> Iterable[Sequence[str]]:
    rows = run.measurements.rows
    for name in in_order(rows):
        row = rows[name]
        if row.latency_ms_p50 is not None:
            yield (
                row_title(name, row.backend),
                numbers.milliseconds(row.latency_ms_p50),
                numbers.milliseconds(row.latency_ms_p99),
                numbers.rate(row.throughput),
                numbers.size(row.bytes),
            )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return DASH if value is None or value == [] else str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
