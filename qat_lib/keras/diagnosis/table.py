"""A diagnosis as text of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator

from qat_lib.keras.diagnosis.report import Diagnosis, LayerEffect, LayerFinding, PartEffect

_WIDTH = 80
_NAME = 28
_ROWS = 12
_NOTHING = 1e-5
"""Effect below which quantization costs nothing."""
MEASURES = {
    "kl": "KL divergence of the class probabilities from FP32's, in nats",
    "error": "RMS error of the outputs, as a share of their standard deviation",
}
"""What the effects are, by measure."""


def as_text(diagnosis: Diagnosis, *, every_layer: bool = False) -> str:
    """Return a diagnosis as text; ``every_layer`` shows all rows and minor findings."""
    lines = [
        f"{diagnosis.model}: quantized as a whole {number(diagnosis.total)} on "
        f"{diagnosis.samples} samples",
        f"({MEASURES[diagnosis.measure]})",
        "",
        *_table(diagnosis, every_layer),
        "",
    ]
    shown = [each for each in diagnosis.findings if every_layer or not each.minor]
    for place, finding in enumerate(shown, 1):
        lines += [*_finding(place, finding), ""]
    if not shown:
        lines += _wrapped(nothing_found(diagnosis), "")
    for layer in diagnosis.skipped:
        lines += _wrapped(f"In float: {layer.layer} ({layer.class_name}): {layer.detail}", "  ")
    return "\n".join(lines).rstrip()


def nothing_found(diagnosis: Diagnosis) -> str:
    """Return what to say of a model without a bad layer."""
    largest = diagnosis.layers[0] if diagnosis.layers else None
    if largest is None or diagnosis.total < _NOTHING:
        return "Quantization costs nothing measurable."
    share = largest.largest / diagnosis.total
    return (
        f"No layer stands out: the largest effect, {largest.layer}'s, is {share:.0%} of the whole. "
        "Leaving layers in float gains little; bias correction, another calibrator or fine-tuning "
        "(qatline finetune) work on all of them."
    )


def _table(diagnosis: Diagnosis, every_layer: bool) -> Iterator[str]:
    yield f"{'':{_NAME}}  {'only it quantized':>18}  {'all but it':>16}  {'SQNR in dB':>12}"
    heads = f"{'weights':>9}{'inputs':>9}  {'weights':>8}{'inputs':>8}  {'w.':>6}{'in':>6}"
    yield f"{'layer':{_NAME}}  {heads}"
    rows = diagnosis.layers if every_layer else diagnosis.layers[:_ROWS]
    for row in rows:
        yield _row(row)
    if left := len(diagnosis.layers) - len(rows):
        yield f"... and {left} layers with smaller effects"


def _row(row: LayerEffect) -> str:
    weights, inputs = row.weights, row.inputs
    only = f"{_only(weights):>9}{_only(inputs):>9}"
    without = f"{_without(weights):>8}{_without(inputs):>8}"
    noise = f"{_sqnr(weights):>6}{_sqnr(inputs):>6}"
    return f"{short_name(row.layer):{_NAME}}  {only}  {without}  {noise}"


def short_name(name: str, width: int = _NAME) -> str:
    """Return a name cut in the middle to a width."""
    if len(name) <= width:
        return name
    half = (width - 1) // 2
    return f"{name[: width - half - 1]}…{name[-half:]}"


def number(value: float) -> str:
    """Return an effect with three digits."""
    return f"{value:.3f}" if value >= 0.01 else f"{value:.1e}" if value else "0"


def _only(part: PartEffect | None) -> str:
    return "-" if part is None else number(part.only)


def _without(part: PartEffect | None) -> str:
    return "-" if part is None else number(part.without)


def _sqnr(part: PartEffect | None) -> str:
    if part is None:
        return "-"
    return f"{part.sqnr_db:.0f}" if math.isfinite(part.sqnr_db) else "exact"


def _finding(place: int, finding: LayerFinding) -> Iterator[str]:
    yield from _wrapped(f"{place}. {finding.layer}: {finding.cause} in {finding.tensor}", "   ")
    effects = (
        f"Alone it costs {number(finding.only)}; without it {number(finding.without)} is left."
    )
    text = f"{finding.message} {effects} {finding.advice}".rstrip()
    yield from (f"   {line}" for line in _wrapped(text, ""))
    for entry in finding.change:
        lines = [f"{key}: {_plain(value)}" for key, value in entry.to_dict().items()]
        yield f"     - {lines[0]}"
        for line in lines[1:]:
            yield f"       {line}"


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH - 3, subsequent_indent=indent)
