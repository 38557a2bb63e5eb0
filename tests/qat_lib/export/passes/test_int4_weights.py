"""INT4 initializers of narrow weights."""

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import QUANTIZER
from qat_lib.export.ranges import LearnedRange

TEXT = """(float[N,2] x) => (float[N,3] y) {
    d = DequantizeLinear(w, scale, zero)
    y = MatMul(x, d) }"""


@pytest.fixture
def weights(lab):
    """Return a lowered model of INT8 weights, whose quantizer is named w."""

    def build(integers):
        model = lab.build(
            TEXT,
            w=np.asarray(integers, np.int8),
            scale=np.asarray(0.5, np.float32),
            zero=np.zeros((), np.int8),
        )
        lab.node(model, "DequantizeLinear").meta[QUANTIZER] = "w"
        return model

    return build


def narrowed(model, bits):
    learned = LearnedRange(name="w", amax=np.float32(1), narrow=True, num_bits=bits)
    return passes.store_int4_weights(model, {"w": learned})


@pytest.mark.parametrize(
    ("bits", "integers", "stored"),
    [
        (4, [[-8, 7, 0], [1, -7, 3]], ir.DataType.INT4),
        (2, [[-1, 1, 0], [1, 0, 0]], ir.DataType.INT4),
        (5, [[-1, 1, 0], [1, 0, 0]], ir.DataType.INT8),
        (8, [[-128, 127, 0], [1, 0, 0]], ir.DataType.INT8),
        # -8 whose sign a folded BatchNormalization has turned.
        (4, [[8, 7, 0], [1, -7, 3]], ir.DataType.INT8),
    ],
)
def test_store_int4_weights_keeps_the_integers(lab, weights, bits, integers, stored):
    model = weights(integers)
    lowered = narrowed(model, bits)
    node = lab.node(lowered, "DequantizeLinear")
    assert [node.inputs[0].dtype, node.inputs[2].dtype] == [stored, stored]
    assert node.inputs[0].const_value.numpy().astype(np.int8).tolist() == integers
    assert lab.node(model, "DequantizeLinear").inputs[0].dtype == ir.DataType.INT8


def test_store_int4_weights_shares_an_initializer(lab):
    text = """(float[N,2] x) => (float[N,3] y) {
        d1 = DequantizeLinear(w, scale, zero)
        d2 = DequantizeLinear(w, scale, zero)
        a = MatMul(x, d1)
        b = MatMul(x, d2)
        y = Add(a, b) }"""
    model = lab.build(
        text,
        w=np.ones((2, 3), np.int8),
        scale=np.asarray(0.5, np.float32),
        zero=np.zeros((), np.int8),
    )
    for node in model.graph:
        if node.op_type == "DequantizeLinear":
            node.meta[QUANTIZER] = "w"
    first, second = [n for n in narrowed(model, 4).graph if n.op_type == "DequantizeLinear"]
    assert first.inputs[0] is second.inputs[0]
    assert first.inputs[0].dtype == ir.DataType.INT4
