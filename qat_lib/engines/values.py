"""Value types of the engine interface: tensors, layers, latencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Dimension = int | None


def nan_samples(values: Array) -> int:
    """Return the number of samples with a NaN; 0 for integers.

    Samples lie along the first axis; an array without axes is one sample.
    """
    if values.dtype.kind not in "fV":  # V: bfloat16 and the like
        return 0
    missing = np.isnan(values)
    return int(missing.reshape(len(values), -1).any(axis=1).sum() if values.ndim else missing)


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Name, shape and NumPy dtype name of one input or output; None is an open dimension."""

    name: str
    shape: tuple[Dimension, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ["?" if size is None else str(size) for size in self.shape]
        return f"{self.name}: {self.dtype} ({', '.join(sizes)})"


def names_of(tensors: Iterable[TensorInfo]) -> list[str]:
    """Return the names of the tensors, in their order."""
    return [tensor.name for tensor in tensors]


@dataclass(frozen=True, kw_only=True)
class EngineLayer:
    """One layer of a built engine, as reported by the backend.

    Args:
        name: the backend's name.
        kind: the backend's layer type, such as ``Convolution``.
        nodes: names of its ONNX nodes.
        precision: compute data type: ``int8``, ``fp16``, ``bf16``, ``fp32``, ...
        weighted: whether it multiplies by constant weights (convolution, dense, ...).
        output_precision: data type of the output; empty if not reported.
        time_ms: mean time of one run in milliseconds; None without profiling.
        kernel: the selected implementation; empty if not reported.
        keras_layer: Keras layer of its first node with weights, else of its first node except Q
            and DQ, else of its first node; empty without known nodes.
        quantizers: quantizers of its Q and DQ nodes.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    precision: str
    weighted: bool
    output_precision: str = ""
    time_ms: float | None = None
    kernel: str = ""
    keras_layer: str = ""
    quantizers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the layer as JSON types."""
        return asdict(self) | {"nodes": list(self.nodes), "quantizers": list(self.quantizers)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineLayer:
        """Return the layer of a dict from ``to_dict``."""
        quantizers = tuple(values.get("quantizers", ()))
        return cls(**{**values, "nodes": tuple(values["nodes"]), "quantizers": quantizers})


@dataclass(frozen=True, kw_only=True)
class PrecisionSummary:
    """Number of weighted layers in INT8, and of layers by precision."""

    int8_layers: int
    weighted_layers: int
    layers: Mapping[str, int]

    @classmethod
    def of(cls, layers: Sequence[EngineLayer]) -> PrecisionSummary:
        """Count ``layers``."""
        counts: dict[str, int] = {}
        int8_layers = weighted_layers = 0
        for layer in layers:
            counts[layer.precision] = counts.get(layer.precision, 0) + 1
            if layer.weighted:
                weighted_layers += 1
                int8_layers += layer.precision == "int8"
        return cls(
            int8_layers=int8_layers,
            weighted_layers=weighted_layers,
            layers=dict(sorted(counts.items())),
        )


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Median, 90th and 99th percentile and mean, in milliseconds."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of(cls, seconds: Sequence[float] | Array) -> Percentiles:
        """Summarize durations given in seconds."""
        values = np.asarray(seconds, np.float64) * 1e3
        p50, p90, p99 = map(float, np.percentile(values, (50, 90, 99)))
        return cls(p50=p50, p90=p90, p99=p99, mean=float(values.mean()))


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Result of a benchmark.

    Args:
        batch_size: samples in each request.
        iterations: number of timed requests.
        end_to_end: one request from NumPy array to NumPy array.
        compute: time on the device only; None without a device clock.
        throughput: samples per second over the timed requests.
        cuda_graph: whether requests were replayed from a CUDA graph.
        clients: number of concurrent client threads.
    """

    batch_size: int
    iterations: int
    end_to_end: Percentiles
    throughput: float
    compute: Percentiles | None = None
    cuda_graph: bool = False
    clients: int = 1

    @property
    def p50_ms(self) -> float:
        """Median of one request, in milliseconds."""
        return self.end_to_end.p50

    @property
    def p90_ms(self) -> float:
        """90th percentile of one request, in milliseconds."""
        return self.end_to_end.p90

    @property
    def p99_ms(self) -> float:
        """99th percentile of one request, in milliseconds."""
        return self.end_to_end.p99

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return asdict(self)
