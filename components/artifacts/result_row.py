"""Measurements of one row of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.artifacts.record import Measured, Record, Text

# Metrics that earlier versions wrote beside the other measurements.
_FORMER = ("accuracy", "top5")


class ResultRow(Record):
    """Measurements of one row of the results; None means not measured.

    Attributes:
        quality: metrics of the test part by name, the primary one first.
        metric: description of the primary metric.
        bytes: size of the model or engine file.
        latency_ms_p50, latency_ms_p99: latency of one request at batch 1, in milliseconds.
        throughput: samples per second in batches of ``batch_size``.
        int8_layers, weighted_layers: number of weighted layers in INT8, and of all weighted layers.
        device_memory_mib, memory_mib: memory of the device, and of a fresh process, in MiB.
    """

    bytes: Measured = None
    latency_ms_p50: Measured = None
    latency_ms_p99: Measured = None
    throughput: Measured = None
    batch_size: Measured = None
    int8_layers: Measured = None
    weighted_layers: Measured = None
    backend: Text = ""
    device_memory_mib: Measured = None
    quality: Mapping[str, Measured] = Field(default_factory=dict)
    metric: Metric = ACCURACY
    memory_mib: Measured = None

    @model_validator(mode="before")
    @classmethod
    def _with_former_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or not any(name in values for name in _FORMER):
            return values
        found = {name: values[name] for name in _FORMER if values.get(name) is not None}
        rest = {name: value for name, value in values.items() if name not in _FORMER}
        return {**rest, "quality": {**found, **rest.get("quality", {})}} if found else rest

    @property
    def value(self) -> float | None:
        """Value of the primary metric; None if not measured."""
        return self.quality.get(self.metric.name)

    def with_quality(self, quality: Mapping[str, float], metric: Metric) -> ResultRow:
        """Return the row with its metrics; ``metric`` describes the primary one."""
        return self.model_copy(update={"quality": dict(quality), "metric": metric})

    def with_memory(self, mib: float | None) -> ResultRow:
        """Return the row with the memory of a fresh process."""
        return self.model_copy(update={"memory_mib": mib})

    def numbers(self) -> dict[str, float]:
        """Return the measurements by name, with each metric under its own name."""
        values: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        values |= self.quality
        return {
            name: float(value) for name, value in values.items() if isinstance(value, int | float)
        }
