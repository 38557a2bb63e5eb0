"""The weighted layers: what the fusion analysis predicts of each, and what the built engine says."""

from __future__ import annotations

from dataclasses import dataclass

from components.report.graph_picture import engine_precisions
from components.report.numbers import finite, percent
from components.report.sources import RunData, as_rows


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One weighted layer; ``share`` is its part of the multiply-accumulates, from 0 to 1."""

    name: str
    kind: str
    share: float
    share_text: str
    predicted: str
    engine: str
    tone: str


def layer_rows(run: RunData) -> list[LayerRow]:
    """Return a row for each weighted layer of the analysis, in the order of the graph."""
    engine = engine_precisions(as_rows(run.layers.get("qat")))
    rows = []
    for item in as_rows(run.analysis.get("layers")):
        node, share = str(item.get("name", "")), finite(item.get("macs_share")) or 0.0
        predicted, built = str(item.get("precision", "")), engine.get(node, "")
        rows.append(
            LayerRow(
                name=str(item.get("keras_layer") or node),
                kind=str(item.get("op_type", "")),
                share=min(max(share, 0.0), 1.0),
                share_text=percent(share, 1),
                predicted=predicted,
                engine=built or "–",
                tone="good" if "int8" in (built or predicted) else "bad",
            )
        )
    return rows
