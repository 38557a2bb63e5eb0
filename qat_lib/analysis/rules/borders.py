"""The graph's inputs, and types where quantized and other operands meet (H2, H3, V28)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.engine import Engine
from qat_lib.analysis.findings import Finding, make_finding
from qat_lib.onnx_view.graph import Node
from qat_lib.onnx_view.names import keras_layer
from qat_lib.roles import ARITHMETIC, onnx_operators

_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})
#: Operators whose operands have one type.
_SAME_TYPE = onnx_operators("weighted") | ARITHMETIC | {"Concat", "Max", "Min", "Sum"}


def check_borders(engine: Engine) -> Iterator[Finding]:
    """Yield hints about the graph's inputs and operands of different floating-point types."""
    inputs = set(engine.graph.inputs)
    for node in engine.flow.operators:
        if node.op == "Cast" and node.input(0) in inputs:
            inputs.update(node.outputs)
    for kernel in engine.kernels:
        if kernel.reason == "quantize" and kernel.values[0] in inputs:
            yield make_finding(
                "H2",
                kernel.name,
                f"the input {kernel.values[0]!r} is quantized by a kernel of its own.",
                "Feed INT8 and remove the first Q if the caller can quantize, or accept one small kernel.",
                "E",
                rule="L",
                keras_layer=keras_layer(kernel.name),
            )
    for node in engine.flow.operators:
        if node.op == "Transpose" and node.input(0) in inputs:
            yield make_finding(
                "H3",
                node.name,
                f"the input {node.input(0)!r} is transposed by a kernel of its own.",
                "Export with a channels-first input if the caller can feed one.",
                "E",
                rule="L",
                keras_layer=keras_layer(node.name),
            )
        if node.op in _SAME_TYPE:
            yield from _check_types(engine, node)


def _check_types(engine: Engine, node: Node) -> Iterator[Finding]:
    types = {}
    for read in engine.flow.inputs(node):
        found = (
            read.scale.float_type
            if read.explicit and read.scale
            else engine.graph.dtype(read.value)
        )
        if found in _FLOATS:
            types[read.position] = found
    if len(set(types.values())) > 1:
        layer = keras_layer(node.name)
        listed = ", ".join(f"input {position} {dtype}" for position, dtype in types.items())
        yield make_finding(
            "V28",
            node.name,
            f"the operands of {layer!r} have different types ({listed}); a DQ gives the type of its scale, and a "
            "strongly typed network converts nothing by itself.",
            f"Write the scales of {layer!r} in the type of its other operands, or cast those.",
            "D",
            rule="M",
            keras_layer=layer,
        )
