"""Records of a lowered graph: scales, weights, readers, layer tensors."""

import json

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import FACTOR, LEARNED, ORIGINAL, QUANTIZER, TENSOR
from qat_lib.export.metadata import integer_digest
from qat_lib.export.ranges import LearnedRange
from qat_lib.export.record import keras_tensors, record_quantizers, write_metadata
from qat_lib.onnx_view.metadata import read_metadata

X = {"x": np.float32([[1, 2]])}
INTEGERS = np.int8([[1, 2], [3, 4]])
FACTOR_2 = np.float32([2, 0])


def pair(data, zero="z"):
    return f"DequantizeLinear(QuantizeLinear({data}, s, {zero}), s, {zero})"


def network(lab):
    """Return two activations, two weights, and others.

    The second activation is unsigned; the second weight has an axis and a factor.
    """
    text = (
        f"a = {pair('x')}; b = {pair('Relu(a)', 'u')}; w = DequantizeLinear(i, s, z);"
        "v = DequantizeLinear<axis = 0>(i, s2, z2); DequantizeLinear(i, s, z); MatMul(MatMul(b, w), v); Add(b, b); a"
    )
    zeros = {"z": np.int8(0), "u": np.uint8(0), "z2": np.int8([0, 0])}
    model = lab.formula(text, X, i=INTEGERS, s=np.float32(0.5), s2=np.float32([0.5, 0.25]), **zeros)
    first, second, w, v, _ = (node for node in model.graph if node.op_type == "DequantizeLinear")
    for node, name in ((first, "a"), (second, "b"), (w, "w"), (v, "v")):
        node.meta[QUANTIZER] = name
        node.name = f"{name}/DequantizeLinear"
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            node.meta[QUANTIZER] = node.outputs[0].uses()[0].node.meta[QUANTIZER]
    w.meta.update({ORIGINAL: INTEGERS, LEARNED: np.float32(0.5)})
    v.meta.update({ORIGINAL: INTEGERS, LEARNED: np.float32([0.5, 0.25]), FACTOR: FACTOR_2})
    return model


RANGES = {
    "a": LearnedRange(name="a", amax=np.float32([12.7])),
    "b": LearnedRange(name="b", amax=np.float32(25.5), unsigned=True),
}


def test_record_quantizers(lab):
    recorded = record_quantizers(network(lab), RANGES, ["off"], half=True)
    assert recorded.activations == {
        "a": np.float32(12.7) / np.float32(127),
        "b": np.float32(25.5) / np.float32(255),
    }
    assert recorded.weights.keys() == {"w/DequantizeLinear", "v/DequantizeLinear"}
    w, v = recorded.weights.values()
    assert (w.quantizer, w.scale, w.factor, w.axis) == ("w", 0.5, None, 1)
    assert w.digest == integer_digest(INTEGERS, None, 1)
    assert (v.quantizer, v.scale.tolist(), v.factor.tolist(), v.axis) == (
        "v",
        [0.5, 0.25],
        [2, 0],
        0,
    )
    assert (
        v.digest == integer_digest(INTEGERS, FACTOR_2, 0) != integer_digest(INTEGERS, FACTOR_2, 1)
    )
    assert (recorded.disabled, recorded.half) == (("off",), True)
    assert not record_quantizers(network(lab), RANGES, [], half=False).half


def test_record_quantizers_says_who_reads_what(lab):
    model = network(lab)
    for node in model.graph:
        if node.op_type in ("MatMul", "Add", "Relu"):
            node.name = f"{node.op_type}{node.inputs[1].name if node.op_type == 'MatMul' else ''}"
    names = {
        node.inputs[1].producer().meta[QUANTIZER]: node.name
        for node in model.graph
        if node.op_type == "MatMul"
    }
    recorded = record_quantizers(model, RANGES, [], half=False)
    assert recorded.readers == {
        "a/DequantizeLinear": ("Relu:0", "a:"),
        "b/DequantizeLinear": tuple(sorted(("Add:0", "Add:1", f"{names['w']}:0"))),
        "w/DequantizeLinear": (f"{names['w']}:1",),
        "v/DequantizeLinear": (f"{names['v']}:1",),
    }


def test_record_quantizers_names_the_unsigned_ones(lab):
    model = network(lab)
    assert record_quantizers(model, RANGES, [], half=False).unsigned == ("b/DequantizeLinear",)
    dequantize = lab.node(model, "DequantizeLinear", 1)
    dequantize.resize_inputs(2)
    assert record_quantizers(model, RANGES, [], half=False).unsigned == ()


def test_keras_tensors_maps_layers_to_tensors(lab):
    model = lab.build(
        "(float[4] x) => (float y) { a, b = Split<axis = 0>(x)\n c = Add(a, b)\n y = Relu(c) }"
    )
    split, add, _ = model.graph
    split.outputs[1].meta[TENSOR] = "half"
    add.outputs[0].meta[TENSOR] = "sum"
    assert json.loads(keras_tensors(model)) == {"half": "b", "sum": "c"}


def test_write_metadata_adds_entries_under_a_prefix(lab):
    model = lab.formula("Relu(x)", X)
    model.metadata_props["author"] = "me"
    write_metadata(model, {"target": "tensorrt", "layout": "{}"})
    assert model.metadata_props == {
        "author": "me",
        "qatline.target": "tensorrt",
        "qatline.layout": "{}",
    }
    assert read_metadata(ir.to_proto(model)) == {"target": "tensorrt", "layout": "{}"}
