"""HTML page of a diagnosis."""

from __future__ import annotations

import json
import math
from pathlib import Path

from qat_lib.keras.diagnosis.report import (
    MEASURES,
    Diagnosis,
    LayerFinding,
    PartEffect,
    nothing_found,
)
from qat_lib.pages.html import render_page
from qat_lib.pages.numbers import DASH, percent, significant


def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as a self-contained HTML page."""
    # 1.0 avoids a division by zero if no layer has an effect.
    longest = max((row.largest for row in diagnosis.layers), default=0.0) or 1.0
    return render_page(
        Path(__file__).with_name("diagnosis.html.j2"),
        diagnosis=diagnosis,
        total=significant(diagnosis.total),
        measure=MEASURES[diagnosis.measure],
        findings=[
            (finding, _change(finding)) for finding in diagnosis.findings if not finding.minor
        ],
        nothing=nothing_found(diagnosis),
        layers=[
            (row.layer, [_part(part, longest) for part in (row.weights, row.inputs)])
            for row in diagnosis.layers
        ],
        tensors=[
            (
                tensor.tensor,
                tensor.kind,
                (
                    _decibels(tensor.sqnr_db),
                    _decibels(tensor.channel_sqnr_db),
                    f"{tensor.cosine:.5f}",
                    percent(tensor.clipped, 3),
                    significant(tensor.channel_spread),
                ),
            )
            for tensor in sorted(diagnosis.tensors, key=lambda each: each.sqnr_db)
        ],
    )


def _part(part: PartEffect | None, longest: float) -> tuple[str, str, float]:
    """Return the effect of a part as text, what is left without it, and the length of its bar."""
    if part is None:
        return DASH, "", 0.0
    return significant(part.only), significant(part.without), max(part.only / longest, 0.0)


def _change(finding: LayerFinding) -> str:
    """Return the entries of the fix in the form of a spec file."""
    lines = []
    for entry in finding.change:
        pairs = [f"{key}: {json.dumps(value)}" for key, value in entry.to_dict().items()]
        lines.append("- " + "\n  ".join(pairs))
    return "\n".join(lines)


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "exact"
