"""Graph inputs, and operand types next to a DQ (H2, H3, V28)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.graph.roles import ARITHMETIC, onnx_operators
from qat_lib.onnx_view.graph import Node

V28 = Rule("V28", "error", "types of a DQ and of the operands that it meets differ", "M")
H2 = Rule("H2", "info", "the input's Q is a separate kernel", "L", "E")
H3 = Rule("H3", "info", "the input is transposed inside the graph", "L", "E")

_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})
#: Operators with operands of one type.
_SAME_TYPE = onnx_operators("weighted") | ARITHMETIC | {"Concat", "Max", "Min", "Sum"}


def check_borders(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield hints about the graph's inputs and operands of different floating-point types."""
    # A Cast of an input counts as the input itself.
    inputs = set(engine.graph.inputs)
    for node in engine.flow.operators:
        if node.op == "Cast" and node.input(0) in inputs:
            inputs.update(node.outputs)
    for kernel in engine.kernels:
        if kernel.reason == "quantize" and kernel.values[0] in inputs:
            yield H2.at(
                engine.graph.node_by_name.get(kernel.name, kernel.name),
                message=f"the input {kernel.values[0]!r} is quantized by a separate kernel.",
                advice="Feed INT8 and remove the first Q if the caller can quantize, or accept one "
                "small kernel.",
            )
    for node in engine.flow.operators:
        if node.op == "Transpose" and node.input(0) in inputs:
            yield H3.at(
                node,
                message=f"the input {node.input(0)!r} is transposed by a separate kernel.",
                advice="Export with a channels-first input if the caller can feed one.",
            )
        if node.op in _SAME_TYPE:
            yield from _check_types(engine, node)


def _check_types(engine: PredictedEngine, node: Node) -> Iterator[Finding]:
    types = {}
    for read in engine.flow.inputs(node):
        found = engine.graph.dtype(read.value)
        if read.explicit and read.scale:
            found = read.scale.float_type
        if found in _FLOATS:
            types[read.position] = found
    if len(set(types.values())) > 1:
        layer = node.keras_layer
        listed = ", ".join(f"input {position} {dtype}" for position, dtype in types.items())
        yield V28.at(
            node,
            message=f"the operands of {layer!r} have different types ({listed}); a DQ gives the "
            "type of its scale, and a strongly typed network converts nothing by itself.",
            advice=f"Write the scales of {layer!r} in the type of its other operands, or cast "
            "those.",
        )
