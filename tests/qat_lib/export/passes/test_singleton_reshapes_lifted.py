"""Reshapes between DQ and matrix product, lifted above the Q."""

import numpy as np
import pytest
from graph_text import build, check_rewrite, floats, ints

from qat_lib.export.graph import TENSOR
from qat_lib.export.passes import eliminate_singleton_reshapes

pytestmark = pytest.mark.timeout(10)  # seconds: the pass goes on until nothing changes

CONSTANTS = {
    "s": np.float32(0.1),
    "s1": np.float32([0.1]),
    "s3": np.float32([0.1, 0.2, 0.3]),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "z3": np.zeros(3, np.int8),
    "flat": ints(-1, 3),
    "spatial": ints(2, 3),
    "w": floats(3, 2),
}
QDQ = "q = QuantizeLinear<axis=0>({0}, {1})\n d = DequantizeLinear<axis=0>(q, {1})\n"
DENSE = "q = QuantizeLinear({0}, {1})\n d = DequantizeLinear(q, {1})\n"


@pytest.mark.parametrize("reshape", ["Flatten({})", "Reshape({}, flat)", "Squeeze({}, spatial)"])
@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize("scale", ["s, z", "s1, z1", "s"])
def test_a_reshape_between_dequantize_and_product_goes_up(lab, product, scale, reshape):
    signature = "(float[2,3,1,1] x) => (float y)"
    before = (
        "e = Exp(x)\n" + QDQ.format("e", scale) + f"f = {reshape.format('d')}\n y = {product}(f, w)"
    )
    after = (
        f"e = Exp(x)\n f = {reshape.format('e')}\n"
        + QDQ.format("f", scale)
        + f"y = {product}(d, w)"
    )
    check_rewrite(
        lab, eliminate_singleton_reshapes, signature, before, after, tolerance=1e-5, **CONSTANTS
    )


def test_lifted_reshape_joins_preceding_one(lab):
    signature = "(float[2,3,1,1] x) => (float y, float z2)"
    front = "e = Exp(x)\n r = Reshape(e, image)\n z2 = Exp(r)\n"
    before = front + QDQ.format("r", "s, z") + "f = Flatten(d)\n y = MatMul(f, w)"
    after = front + "f = Reshape(e, joined)\n" + QDQ.format("f", "s, z") + "y = MatMul(d, w)"
    constants = {**CONSTANTS, "image": ints(2, 1, 1, 3), "joined": ints(2, 3)}
    check_rewrite(
        lab, eliminate_singleton_reshapes, signature, before, after, tolerance=1e-5, **constants
    )


def test_lifted_reshape_takes_layers_off_quantized_tensors(lab):
    text = "e = Exp(x)\n" + DENSE.format("e", "s, z") + "f = Flatten(d)\n y = MatMul(f, w)"
    model = build(lab, f"(float[2,3,1,1] x) => (float y) {{ {text} }}", CONSTANTS)
    for node in model.graph:
        node.outputs[0].meta[TENSOR] = node.op_type
    lowered = eliminate_singleton_reshapes(model)
    assert lab.order(lowered) == ["Exp", "Flatten", "QuantizeLinear", "DequantizeLinear", "MatMul"]
    assert [node.outputs[0].meta.get(TENSOR) for node in lowered.graph] == [
        "Exp",
        "Flatten",
        None,
        None,
        "MatMul",
    ]


KEPT = {
    "no product": "f = Flatten(d)\n y = Exp(f)",
    "the second operand": "f = Flatten(d)\n y = MatMul(square, f)",
    "the product reads it twice": "f = Reshape(d, rows)\n y = Gemm(f, f)",
    "no dequantize": "e = Exp(d)\n f = Flatten(e)\n y = MatMul(f, w)",
}


@pytest.mark.parametrize("case", KEPT)
def test_a_reshape_stays_behind_a_dequantize(lab, case):
    signature = "(float[3,3,1,1] x) => (float y)"
    text = "e = Exp(x)\n" + DENSE.format("e", "s, z") + KEPT[case]
    text = text.replace("e = Exp(d)", "g = Exp(d)").replace("Flatten(e)", "Flatten(g)")
    constants = {**CONSTANTS, "square": floats(2, 3), "rows": ints(3, 3)}
    check_rewrite(lab, eliminate_singleton_reshapes, signature, text, tolerance=1e-5, **constants)


PAIR = "q = QuantizeLinear(x, s, z)\n d = DequantizeLinear(q, s, z)\n"
CHANNELS = "q = QuantizeLinear<axis=1>(x, s3, z3)\n d = DequantizeLinear<axis=1>(q, s3, z3)\n"
SHARED = {
    "dequantized tensor read": PAIR + "z2 = Exp(d)\n f = Flatten(d)",
    "quantized tensor read": PAIR + "z2 = DequantizeLinear(q, s, z)\n f = Flatten(d)",
    "reshape read": PAIR + "f = Flatten(d)\n z2 = Exp(f)",
    "scales of channels": CHANNELS + "f = Flatten(d)\n z2 = Exp(x)",
    "scales of channels behind one": "q = QuantizeLinear(x, s, z)\n d = DequantizeLinear<axis=1>(q, s3, z3)\n"
    "f = Flatten(d)\n z2 = Exp(x)",
    "no quantizer": "q = Cast<to=3>(x)\n d = DequantizeLinear(q, s, z)\n f = Flatten(d)\n z2 = Exp(x)",
}


@pytest.mark.parametrize("case", SHARED)
def test_reshape_lifted_over_private_pair_only(lab, case):
    signature = "(float[2,3,1,1] x) => (float y, float z2)"
    text = f"{SHARED[case]}\n y = MatMul(f, w)"
    check_rewrite(lab, eliminate_singleton_reshapes, signature, text, tolerance=1e-5, **CONSTANTS)
