"""Measurements of one row of the results."""

from __future__ import annotations

from qatline.components.artifacts.record import Measured, Record, Text


class ResultRow(Record):
    """Measurements of one row of the results; None means not measured.

    Attributes:
        accuracy, top5: shares of the test part, in [0, 1]; ``top5`` for at least six classes.
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
    accuracy: Measured = None
    top5: Measured = None
    memory_mib: Measured = None

    def with_quality(self, *, accuracy: float, top5: float | None) -> ResultRow:
        """Return the row with its accuracy metrics; ``top5`` is None with few classes."""
        quality = {"accuracy": accuracy} | ({} if top5 is None else {"top5": top5})
        return self.model_copy(update=quality)

    def with_memory(self, mib: float | None) -> ResultRow:
        """Return the row with the memory of a fresh process."""
        return self.model_copy(update={"memory_mib": mib})

    def numbers(self) -> dict[str, float]:
        """Return the measurements by name."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: float(value) for name, value in values if isinstance(value, int | float)}
