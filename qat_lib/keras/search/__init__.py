"""Search for layers to keep in float, within an accuracy bound and with measured latency."""

from __future__ import annotations

from qat_lib.keras.search.report import FloatLayer, PlacementResult, SpeedComparison
from qat_lib.keras.search.search import search
from qat_lib.optimization.metrics import choose_metric, parse_drop

__all__ = [
    "FloatLayer",
    "PlacementResult",
    "SpeedComparison",
    "choose_metric",
    "parse_drop",
    "search",
]
