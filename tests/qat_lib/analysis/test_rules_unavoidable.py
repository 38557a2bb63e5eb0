"""Unavoidable findings are information, not warnings; float normalizations read INT8."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis import FusionReport, analyze_graph


def report(g: GraphBuilder) -> FusionReport:
    return analyze_graph(g.graph())


def severities(g: GraphBuilder) -> dict[str, str]:
    return {
        finding.code: finding.severity for finding in report(g).findings if finding.code != "H2"
    }


def last_block(
    *, quantize_residual: bool, residual_is_shared: bool, ends: Callable[[GraphBuilder, str], str]
) -> GraphBuilder:
    """A residual block whose sum something reads in floating point."""
    g = GraphBuilder()
    x = g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, 16, name="first")
    quantized = g.qdq(x)
    branch = g.conv(
        quantized if residual_is_shared else g.qdq(g.input("y", (1, 16, 16, 16))),
        16,
        16,
        name="branch",
    )
    total = g.op("Add", [quantized if quantize_residual else x, branch], "add/Add")
    g.output(ends(g, total))
    return g


def as_output(g: GraphBuilder, total: str) -> str:
    return total


def behind_sigmoid(g: GraphBuilder, total: str) -> str:
    return g.conv(g.qdq(g.op("Sigmoid", [total])), 16, 16, name="next")


def behind_float_convolution(g: GraphBuilder, total: str) -> str:
    return g.conv(total, 16, 16, name="next", quantized=False)


@pytest.mark.parametrize("ends", [as_output, behind_sigmoid])
def test_shared_residual_may_be_quantized_for_a_float_reader(
    ends: Callable[[GraphBuilder, str], str],
) -> None:
    found = severities(last_block(quantize_residual=True, residual_is_shared=True, ends=ends))
    assert found["V16"] == "info"
    alone = severities(last_block(quantize_residual=True, residual_is_shared=False, ends=ends))
    assert alone["V16"] == "warning"


@pytest.mark.parametrize("ends", [as_output, behind_sigmoid])
def test_a_float_residual_costs_nothing_before_a_float_reader(
    ends: Callable[[GraphBuilder, str], str],
) -> None:
    found = severities(last_block(quantize_residual=False, residual_is_shared=False, ends=ends))
    assert found == {"V15": "info"}


def test_a_reader_that_could_be_quantized_is_a_warning() -> None:
    for quantize_residual, code in ((True, "V16"), (False, "V15")):
        g = last_block(
            quantize_residual=quantize_residual,
            residual_is_shared=True,
            ends=behind_float_convolution,
        )
        assert severities(g)[code] == "warning"


def layer_norm_in_pieces(g: GraphBuilder, x: str, axis: int = 1) -> str:
    mean = g.op("ReduceMean", [x], "ln/ReduceMean", axes=[axis], keepdims=1)
    centred = g.op("Sub", [x, mean], "ln/Sub")
    variance = g.op(
        "ReduceMean", [g.op("Mul", [centred, centred], "ln/Mul")], "ln/ReduceMean_1", axes=[axis]
    )
    factor = g.op("Reciprocal", [g.op("Sqrt", [variance], "ln/Sqrt")], "ln/Reciprocal")
    return g.op("Mul", [x, factor], "ln/Mul_1")


def test_a_normalization_in_pieces_may_read_int8() -> None:
    g = GraphBuilder()
    x = g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, 16, name="first")
    g.output(g.conv(g.qdq(layer_norm_in_pieces(g, g.qdq(x))), 16, 16, name="next"))
    assert severities(g) == {}
    assert [layer.writes for layer in report(g).layers] == ["int8", "float"]


def test_other_int8_float_product_is_warning() -> None:
    g = GraphBuilder()
    x = g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, 16, name="first")
    scale = g.op("GlobalAveragePool", [g.input("y", (1, 16, 16, 16))])
    g.output(g.conv(g.qdq(g.op("Mul", [g.qdq(x), scale], "scale/Mul")), 16, 16, name="next"))
    assert severities(g) == {"V18": "warning"}


@pytest.mark.parametrize(("behind", "expected"), [("conv", {}), ("input", {"V22": "warning"})])
def test_layer_normalization_reads_int8_behind_a_kernel(
    behind: str, expected: dict[str, str]
) -> None:
    g = GraphBuilder()
    x = g.input(shape=(1, 8, 16))
    if behind == "conv":
        x = g.dense(g.qdq(x), 16, 16, name="first")
    parameters = [g.const(np.ones(16)), g.const(np.zeros(16))]
    y = g.op("LayerNormalization", [g.qdq(x), *parameters], "ln/LayerNormalization", axis=-1)
    g.output(g.dense(g.qdq(y), 16, 16, name="next"))
    assert severities(g) == expected


@pytest.mark.parametrize("halved_first", [True, False])
def test_gelu_joins_the_kernel_however_its_half_is_written(halved_first: bool) -> None:
    g = GraphBuilder()
    x = g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, 16, name="first")
    erf = g.op("Add", [g.op("Erf", [g.op("Mul", [x, g.const(0.7071)])]), g.const(1.0)])
    y = (
        g.op("Mul", [g.op("Mul", [x, g.const(0.5)]), erf])
        if halved_first
        else g.op("Mul", [x, erf])
    )
    g.output(g.conv(g.qdq(y), 16, 16, name="next"))
    assert [layer.writes for layer in report(g).layers] == ["int8", "float"]
    assert report(g).summary()["kernels"] == {"quantize": 1}


def test_a_product_with_another_tensor_is_no_gate() -> None:
    g = GraphBuilder()
    x = g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, 16, name="first")
    y = g.op("Mul", [g.op("Sigmoid", [x]), g.op("Mul", [x, g.input("y", (1, 16, 16, 16))])])
    g.output(g.conv(g.qdq(y), 16, 16, name="next"))
    assert report(g).layers[0].writes == "float"
