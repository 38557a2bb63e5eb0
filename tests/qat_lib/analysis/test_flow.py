"""Scales of quantized tensors, as fusion compares them."""

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.flow import Flow, Scale


def test_scale_is_equal_when_its_bits_are() -> None:
    """What a scale is shown by, and the type that it is computed in, do not make it another scale."""
    key = (b"\0\0\0\x3f", None, "int8")
    assert Scale(key=key, largest=0.5) == Scale(key=key, largest=0.25, count=3, axis=1, float_type="float16")
    assert Scale(key=key, largest=0.5) != Scale(key=(b"\0\0\0\x40", None, "int8"), largest=0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scale_says_what_its_dequantizer_gives(dtype: type) -> None:
    """Of a weight, whose values are integers."""
    g = GraphBuilder(opset=19, dtype=dtype)
    g.output(g.op("MatMul", [g.input(shape=(4, 16)), g.weight((16, 8), 1)], "dense/MatMul"))
    flow = Flow.of(g.graph())
    read = flow.input(flow.operators[0], 1)
    assert read is not None
    assert read.scale is not None
    assert (read.scale.float_type, read.scale.count, read.scale.axis) == (np.dtype(dtype).name, 8, 1)
    assert read.scale.is_int8


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_dequantizer_without_a_zero_point_has_the_type_of_its_quantizer(dtype: type) -> None:
    g = GraphBuilder()
    scale = g.const(0.1)
    q = g.op("QuantizeLinear", [g.input(), scale, g.const(0, dtype)])
    g.output(g.op("Tanh", [g.op("DequantizeLinear", [q, scale])]))
    (read,) = Flow.of(g.graph()).readers("x")
    assert [scale.key[2] for scale in read.explicit] == [np.dtype(dtype).name]
    assert len(read.quantizers) == 2
