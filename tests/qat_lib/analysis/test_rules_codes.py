"""Every finding code, with a triggering graph and a near miss.

The second graph of a row is the first with one thing put right: legal, quantized, and nothing is
found in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx_graphs import GraphBuilder
from parser_graphs import one_quantizer, quantized_output, weight_pair
from placement_graphs import (
    attention,
    concat,
    convolution,
    convolution_over,
    cut,
    dense,
    dense_axis,
    first_layer,
    gate,
    operands,
    other_reader,
    padded,
    pooled,
    requantized,
    residual,
    tanh,
    transposed_convolution,
    transposed_weight,
    two_scales,
    typed,
)

from qat_lib.analysis import CATALOG, analyze_graph
from qat_lib.analysis.findings import Rule
from qat_lib.analysis.rules import record

Build = Callable[[], GraphBuilder]

#: The next float32 above 0.1, and the first above 0.
NEXT = float(np.nextafter(np.float32(0.1), np.float32(1)))
TINY = float(np.finfo(np.float32).tiny)
POOL = {"kernel_shape": [2, 2]}
IMAGE_PADS, CHANNEL_PADS = [0, 0, 1, 1, 0, 0, 1, 1], [0, 8, 0, 0, 0, 8, 0, 0]

#: code: (a graph in which it is found, the nearest one in which it is not).
GRAPHS: dict[str, tuple[Build, Build]] = {
    "V01": (lambda: one_quantizer(0.0), lambda: one_quantizer(TINY)),
    "V02": (lambda: one_quantizer(zero=1), lambda: one_quantizer(zero=0)),
    "V03": (lambda: one_quantizer(dtype=np.uint8), lambda: one_quantizer(dtype=np.int8)),
    "V04": (lambda: dense_axis(0), lambda: dense_axis(1)),
    "V05": (lambda: one_quantizer(domain="com.microsoft"), lambda: one_quantizer(domain="")),
    "V06": (
        lambda: weight_pair([0.1] * 4, opset=12, axis=0),
        lambda: weight_pair([0.1] * 4, opset=13, axis=0),
    ),
    "V07": (lambda: quantized_output(dequantize=False), lambda: quantized_output(dequantize=True)),
    "V08": (lambda: two_scales(0.1, NEXT), lambda: two_scales(0.1, 0.1)),
    "V09": (lambda: requantized(NEXT), lambda: requantized(0.1)),
    "V10": (
        lambda: operands(quantize_input=True, quantize_weight=False),
        lambda: operands(quantize_input=True, quantize_weight=True),
    ),
    "V11": (
        lambda: operands(quantize_input=False, quantize_weight=False),
        lambda: operands(quantize_input=True, quantize_weight=True),
    ),
    "V12": (lambda: transposed_weight(3), lambda: transposed_weight(3, before_quantizer=True)),
    "V13": (
        lambda: other_reader("MaxPool", **POOL),
        lambda: other_reader("MaxPool", quantized=True, **POOL),
    ),
    "V14": (lambda: cut("before relu"), lambda: cut("after")),
    "V15": (lambda: residual(quantize_shortcut=False), lambda: residual(quantize_shortcut=True)),
    "V16": (
        lambda: residual(quantize_shortcut=True, float_reader=True),
        lambda: residual(quantize_shortcut=True, float_reader=False),
    ),
    "V17": (
        lambda: residual(quantize_shortcut=True, quantize_branch=True),
        lambda: residual(quantize_shortcut=True, quantize_branch=False),
    ),
    "V18": (lambda: gate(quantize_gate=False), lambda: gate(quantize_gate=True)),
    "V19": (lambda: pooled("AveragePool"), lambda: pooled("MaxPool")),
    "V20": (lambda: concat(0.1, NEXT), lambda: concat(0.1, 0.1)),
    "V21": (lambda: concat(0.1, None), lambda: concat(0.1, 0.1)),
    "V22": (lambda: tanh(quantize_input=True), lambda: tanh(quantize_input=False)),
    "V23": (lambda: attention(quantize_mask=True), lambda: attention(quantize_mask=False)),
    "V24": (lambda: dense(32, 64, 15), lambda: dense(32, 64, 16)),
    "V25": (lambda: convolution(32, 31), lambda: convolution(32, 32)),
    "V26": (lambda: transposed_convolution(1), lambda: transposed_convolution(None)),
    "V27": (lambda: convolution_over(1), lambda: convolution_over(2)),
    "V28": (lambda: typed(np.float16, np.float32), lambda: typed(np.float16, np.float16)),
    "H1": (lambda: padded(IMAGE_PADS), lambda: padded(CHANNEL_PADS)),
    "H2": (lambda: first_layer(int8=False), lambda: first_layer(int8=True)),
    "H3": (lambda: first_layer(transpose=True), lambda: first_layer(transpose=False)),
}

#: What is found beside the code because it follows from it.
FOLLOWS: dict[str, set[str]] = {"V08": {"V13"}, "V15": {"V13"}, "V16": {"V13"}}


def found(graph: GraphBuilder) -> set[str]:
    return {finding.code for finding in analyze_graph(graph.graph()).findings}


def op_types(graph: GraphBuilder) -> Counter[str]:
    return Counter(node.op_type for node in graph.nodes)


def check(graph: GraphBuilder) -> None:
    """Check that a graph is valid ONNX: operators, attributes, shapes and types."""
    inferred = onnx.shape_inference.infer_shapes(
        graph.model(), check_type=True, strict_mode=True, data_prop=True
    )
    onnx.checker.check_model(inferred, full_check=True)


def test_every_code_has_its_graphs() -> None:
    verified = {code for code, rule in vars(record).items() if isinstance(rule, Rule)}
    assert set(GRAPHS) == set(CATALOG) - verified


@pytest.mark.parametrize("code", GRAPHS)
def test_code_is_found_in_its_graph_alone(code: str) -> None:
    triggers, nearly = (build() for build in GRAPHS[code])
    hints = {"H1", "H2", "H3"} - {code}
    assert found(triggers) - hints == {code} | FOLLOWS.get(code, set())
    assert found(nearly) - hints == set()
    check(nearly)
    changed = op_types(triggers)
    changed.subtract(op_types(nearly))
    assert sum(map(abs, changed.values())) <= 2
    assert op_types(nearly)["DequantizeLinear"] >= 1
