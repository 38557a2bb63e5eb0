"""Weighted layers: prediction of the fusion analysis, and precision in the built engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qat_lib.pages.numbers import DASH, percent, significant
from qatline.components.report.sources import RunData

if TYPE_CHECKING:
    from qat_lib.engines.values import EngineLayer


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One weighted layer; ``share`` is its fraction (0 to 1) of MACs."""

    name: str
    kind: str
    share: float
    share_text: str
    predicted: str
    engine: str
    tone: str


def layer_rows(run: RunData) -> list[LayerRow]:
    """Return one row per weighted layer, in graph order."""
    engine = engine_precisions(run.layers)
    rows = []
    for layer in run.analysis.layers:
        share, built = layer.macs_share or 0.0, engine.get(layer.name, "")
        rows.append(
            LayerRow(
                name=layer.keras_layer or layer.name,
                kind=layer.op_type,
                share=min(max(share, 0.0), 1.0),
                share_text=percent(share, 1),
                predicted=layer.precision,
                engine=built or "–",
                tone="good" if "int8" in (built or layer.precision) else "bad",
            )
        )
    return rows


def cost_rows(run: RunData) -> list[tuple[str, str, str, str]]:
    """Return (layer, effect of its weights, of its inputs, cause), the largest effect first."""
    rows = []
    for cost in run.costs.layers:
        effects = (significant(cost.weights), significant(cost.inputs))
        rows.append((cost.layer, *effects, cost.cause or DASH))
    return rows


def costs_about(run: RunData) -> str:
    """Return a sentence that explains the effects."""
    if run.costs.total is None:
        return ""
    measured = {
        "kl": "the divergence of the class probabilities from FP32's, in nats",
        "error": "the error of the outputs, as a share of their spread",
    }.get(run.costs.measure, run.costs.measure)
    return (
        f"Effect of quantizing only that part after calibration: {measured}. The whole "
        f"quantization: {significant(run.costs.total)} on {run.costs.samples} samples."
    )


def engine_precisions(layers: Iterable[EngineLayer]) -> dict[str, str]:
    """Return an engine's precision of each ONNX node by name."""
    found = {}
    for layer in layers:
        if layer.precision:
            found.update(dict.fromkeys(layer.nodes, layer.precision))
    return found
