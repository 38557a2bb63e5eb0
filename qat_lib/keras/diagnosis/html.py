"""HTML page of a diagnosis with a bar chart."""

from __future__ import annotations

import json
import math
from html import escape

from qat_lib.keras.diagnosis.report import (
    MEASURES,
    Diagnosis,
    LayerEffect,
    LayerFinding,
    PartEffect,
    nothing_found,
    number,
)

_LEAST = 0.1
"""Shortest bar, in percent of the longest."""
_SERIES = (
    ("weights", "weights alone in INT8", "#0f766e"),
    ("inputs", "inputs alone in INT8", "#d97706"),
)

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --soft: #8885; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; margin-bottom: 0; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.soft {{ opacity: .75; }}
ol.findings {{ padding-left: 1.4rem; }} ol.findings li {{ margin-bottom: 1rem; }}
.cause {{ background: #d9770633; border-radius: .3rem; padding: .05rem .4rem;
  white-space: nowrap; }}
pre {{ background: var(--soft); padding: .6rem .8rem; border-radius: .4rem; overflow-x: auto;
  margin: .4rem 0; }}
.effects {{ list-style: none; padding: 0; font-size: .9rem; line-height: 1.2; }}
.effects li {{ display: grid; grid-template-columns: minmax(0, 16rem) 1fr; gap: .1rem .7rem;
  align-items: center; margin-bottom: .5rem; }}
.effects .layer {{ overflow-wrap: anywhere; }}
.bar {{ display: flex; align-items: center; gap: .4rem; font-size: .8rem; }}
.bar i {{ height: .6rem; border-radius: .15rem; width: calc(var(--share) * (1% - .05rem)); }}
@media (max-width: 600px) {{ .effects li {{ grid-template-columns: 1fr; }} }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: .15rem .6rem; border-bottom: 1px solid var(--soft); }}
th:first-child, td:first-child {{ text-align: left; }}
.key {{ display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin: 0 .3rem 0 1rem; }}
</style>
<h1>{title}</h1>
<p class="soft">{subtitle}</p>
<h2>What to change</h2>
{findings}
<h2>Effect of each layer</h2>
<p>{keys}</p>
{picture}
<h2>Errors of tensors</h2>
<div class="scroll"><table>{table}</table></div>
</html>
"""


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as a self-contained HTML page."""
    keys = []
    for _, label, colour in _SERIES:
        keys.append(f'<span class="key" style="background:{colour}"></span>{escape(label)}')
    measure = MEASURES[diagnosis.measure]
    return _PAGE.format(
        title=escape(f"What INT8 costs {diagnosis.model}"),
        subtitle=escape(
            f"The whole quantization: {number(diagnosis.total)} on {diagnosis.samples} samples "
            f"({measure})."
        ),
        findings=_findings(diagnosis),
        keys="".join(keys),
        picture=_picture(diagnosis),
        table=_tensors(diagnosis),
    )


def _findings(diagnosis: Diagnosis) -> str:
    items = [_finding(finding) for finding in diagnosis.findings if not finding.minor]
    if not items:
        return f"<p>{escape(nothing_found(diagnosis))}</p>"
    return f'<ol class="findings">{"".join(items)}</ol>'


def _finding(finding: LayerFinding) -> str:
    change = ""
    if finding.change:
        lines = []
        for entry in finding.change:
            pairs = [f"{key}: {json.dumps(value)}" for key, value in entry.to_dict().items()]
            lines.append("- " + "\n  ".join(pairs))
        change = f"<pre>{escape(chr(10).join(lines))}</pre>"
    effects = (
        f"Alone it costs {number(finding.only)}; without it {number(finding.without)} is left."
    )
    return (
        f'<li><strong>{escape(finding.layer)}</strong> <span class="cause">{finding.cause}</span> '
        f"<code>{escape(finding.tensor)}</code><br>{escape(finding.message)} {effects} "
        f"{escape(finding.advice)}{change}</li>"
    )


def _picture(diagnosis: Diagnosis) -> str:
    """Return a bar chart with a linear axis from zero to the largest effect."""
    # 1.0 avoids a division by zero if no layer has an effect.
    longest = max((row.largest for row in diagnosis.layers), default=0.0) or 1.0
    items = [_bars(row, longest) for row in diagnosis.layers]
    return f'<ol class="effects">{"".join(items)}</ol>'


def _bars(row: LayerEffect, longest: float) -> str:
    bars = []
    for part, label, colour in _SERIES:
        found: PartEffect | None = getattr(row, part)
        if found is None:
            continue
        # At least a sliver, so that the colour shows which part was measured.
        share = max(100 * found.only / longest, _LEAST)
        style = f"--share: {share:.1f}; background: {colour}"
        bars.append(
            f'<div class="bar"><i title="{label}" style="{style}"></i>{number(found.only)}</div>'
        )
    return (
        f'<li title="{escape(_tooltip(row))}"><span class="layer">{escape(row.layer)}</span>'
        f"<div>{''.join(bars)}</div></li>"
    )


def _tooltip(row: LayerEffect) -> str:
    texts = [row.layer]
    for name, part in (("weights", row.weights), ("inputs", row.inputs)):
        if part is not None:
            left = number(part.without)
            texts.append(f"{name}: alone {number(part.only)}, all but them {left}")
    return "\n".join(texts)


def _tensors(diagnosis: Diagnosis) -> str:
    heads = (
        "tensor",
        "kind",
        "SQNR in dB",
        "median channel",
        "cosine",
        "clipped",
        "channel spread",
    )
    rows = ["<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>"]
    for tensor in sorted(diagnosis.tensors, key=lambda each: each.sqnr_db):
        cells = (
            escape(tensor.tensor),
            tensor.kind,
            _decibels(tensor.sqnr_db),
            _decibels(tensor.channel_sqnr_db),
            f"{tensor.cosine:.5f}",
            f"{tensor.clipped:.3%}",
            f"{tensor.channel_spread:.1f}",
        )
        rows.append("<tr>" + "".join(map("<td>{}</td>".format, cells)) + "</tr>")
    return "".join(rows)


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "exact"
