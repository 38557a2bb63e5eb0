"""Several scales where one would do: V08 and V09."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, make_finding
from qat_lib.onnx_view.names import keras_layer


def check_scales(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield tensors with several scales and requantizations between two scales."""
    for value in engine.flow.values:
        reads = [read for read in engine.flow.readers(value) if read.explicit]
        scales = {read.explicit[0] for read in reads}
        if len(scales) > 1 and not engine.graph.is_constant(value):
            listed = ", ".join(
                f"{scale.largest:.6g}" for scale in sorted(scales, key=lambda scale: scale.largest)
            )
            layer = keras_layer(source_name(engine, value))
            yield make_finding(
                "V08",
                source_name(engine, value),
                f"the output of {layer!r} is quantized with {len(scales)} different scales ({listed}): each costs a "
                "kernel of its own, and the layer cannot write INT8.",
                f"Give the output of {layer!r} one quantizer that all its consumers share.",
                "E",
                rule="A",
                keras_layer=layer,
            )
    for kernel in engine.kernels:
        if kernel.kind == "requantize" and kernel.reason == "requantize":
            source = source_name(engine, kernel.values[0])
            layer = keras_layer(source)
            yield make_finding(
                "V09",
                kernel.name if kernel.name in engine.graph.node_by_name else source,
                f"the INT8 output of {layer!r} is converted to another scale on its way; nothing computes in between.",
                f"Share one quantizer between the output of {layer!r} and the tensor that it becomes.",
                "I",
                rule="C",
                keras_layer=layer,
            )


def source_name(engine: PredictedEngine, value: str) -> str:
    """Return the node that writes ``value``, or the value's own name when it is a graph input."""
    producer = engine.graph.producer(value)
    return producer.name if producer is not None else value
