"""Unnecessary additional scales of a tensor (V08 and V09)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.reads import Scale, list_scales

V08 = Rule("V08", "warning", "one tensor is quantized with several scales", "A", "E")
V09 = Rule("V09", "warning", "requantization between two scales", "C", "I")


def check_scales(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield tensors with several scales and requantizations between two scales."""
    for value in engine.flow.values:
        scales = {read.explicit[0] for read in engine.flow.readers(value) if read.explicit}
        if len(scales) > 1 and not engine.graph.is_constant(value):
            yield _several_scales(engine, value, scales)
    for kernel in engine.kernels:
        if kernel.kind == "requantize" and kernel.reason == "requantize":
            graph, value = engine.graph, kernel.values[0]
            layer = graph.keras_layer(value)
            yield V09.at(
                graph.node_by_name.get(kernel.name) or graph.producer(value) or value,
                message=f"the INT8 output of {layer!r} is converted to another scale on its way; "
                "nothing computes in between.",
                advice=f"Share one quantizer between the output of {layer!r} and the tensor that "
                "it becomes.",
                layer=layer,
            )


def _several_scales(engine: PredictedEngine, value: str, scales: set[Scale]) -> Finding:
    layer = engine.graph.keras_layer(value)
    listed = list_scales(sorted(scales, key=lambda scale: scale.largest))
    return V08.at(
        engine.graph.producer(value) or value,
        message=f"the output of {layer!r} is quantized with {len(scales)} different scales "
        f"({listed}): each costs a separate kernel, and the layer cannot write INT8.",
        advice=f"Give the output of {layer!r} one quantizer that all its consumers share.",
    )
