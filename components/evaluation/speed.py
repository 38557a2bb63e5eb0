"""Sentences on the speed of the INT8 engine compared with float, with reasons for small gains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qat_lib.engines.environment import cpu_kind
from qatline.components.artifacts.evaluation import ResultRow

USUAL_GAIN_SINGLE = 1.5
USUAL_GAIN_BATCH = 2.0
"""Speedups over FP32, at batch 1 and in batches, below which reasons are reported."""

# If a single image takes this many times its time in a batch, fixed costs dominate.
_MOSTLY_OVERHEAD = 2.0


def speed_sentences(
    row: ResultRow, engines: Mapping[str, ResultRow], device: Mapping[str, Any]
) -> tuple[str, ...]:
    """Compare an INT8 engine with the float engines of the same run.

    Args:
        row: the INT8 engine.
        engines: the float engines by precision, such as ``FP32``.
        device: the device of all engines, as described by the engine's manifest.

    Returns:
        One sentence with the ratios for each float engine. The sentence for FP32 is followed by the
        known reasons of speedups below ``USUAL_GAIN_SINGLE`` at batch 1 or ``USUAL_GAIN_BATCH`` in
        batches. Empty without measurements.
    """
    sentences = []
    for precision, other in engines.items():
        single, batch = _ratio(other.latency_ms_p50, row.latency_ms_p50), None
        # Throughputs are comparable at equal batches only, and redundant at batch 1.
        if row.batch_size == other.batch_size and row.batch_size != 1:
            batch = _ratio(row.throughput, other.throughput)
        parts = []
        if single is not None:
            parts.append(f"{single:.2f} times as fast at batch 1")
        if batch is not None:
            parts.append(f"{batch:.2f} times at batch {row.batch_size:.0f}")
        if not parts:
            continue
        size = _ratio(row.bytes, other.bytes)
        if size is not None:
            parts.append(f"{size:.2f} times the size")
        sentences.append(f"INT8 against the {precision} engine: {', '.join(parts)}.")
        slow_single = single is not None and single < USUAL_GAIN_SINGLE
        slow_batch = batch is not None and batch < USUAL_GAIN_BATCH
        if precision == "FP32" and (slow_single or slow_batch):
            sentences += _reasons(row, other, device, single_only=not slow_batch)
    return tuple(sentences)


def _reasons(
    row: ResultRow, fp32: ResultRow, device: Mapping[str, Any], *, single_only: bool
) -> list[str]:
    """Return the known reasons of a small gain, or advice for finding one."""
    reasons = []
    if cpu_kind(device) == "avx2":
        reasons.append(
            f"{device.get('name')} has neither VNNI nor AMX, the instructions that make INT8 fast."
        )
    if (
        row.int8_layers is not None
        and row.weighted_layers
        and row.int8_layers < row.weighted_layers
    ):
        floats = row.weighted_layers - row.int8_layers
        reasons.append(f"{floats:.0f} of {row.weighted_layers:.0f} weighted layers run in float.")
    overhead = _overhead(fp32)
    if single_only and overhead is not None:
        alone, together = overhead
        reasons.append(
            f"In FP32 one image takes {alone:.3f} ms alone and {together:.3f} ms in a batch: most "
            "of a request is a fixed cost, which INT8 leaves as it is."
        )
    if not reasons:
        reasons.append(
            "The cause is not known: an engine built with qatline build-engine --layer-timing "
            "tells the time of each layer to bench-engine."
        )
    return reasons


def _overhead(fp32: ResultRow) -> tuple[float, float] | None:
    """Return milliseconds per image alone and in a batch, if they differ substantially."""
    if not fp32.latency_ms_p50 or not fp32.throughput or fp32.batch_size == 1:
        return None
    together = 1000 / fp32.throughput
    alone = fp32.latency_ms_p50
    return (alone, together) if alone >= _MOSTLY_OVERHEAD * together else None


def _ratio(dividend: float | None, divisor: float | None) -> float | None:
    return dividend / divisor if dividend and divisor else None
