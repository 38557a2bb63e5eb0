"""Source modules of nodes, and modules that output tensors."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from qat_lib.export.graph import LAYER, ORIGIN, TENSOR
from qat_lib.torch.origins import SCOPES, UNKNOWN, Scopes, attribute_nodes

GRAPH = """<ir_version: 8, opset_import: ["" : 18]> g (float[1,4] x) => (float[1,4] y)
<float[4,4] w = {0}> {
    xq = Identity(x)
    wq = Identity(w)
    a = MatMul(xq, wq)
    s = Shape(a)
    b = Relu(a)
    c = Neg(b)
    y = Add(c, b)
}"""
PATHS = {
    "xq": ["", "x_quantizer", "quantizer"],
    "wq": ["", "block", "block.dense", "block.dense.weight_quantizer", "quantizer_1"],
    "a": ["", "block", "block.dense", "matmul"],
    "s": [UNKNOWN, "sym_size"],
    "b": ["", "block", "relu"],
    "c": ["", "qatline_call_neg_1", "neg"],
    "y": ["", "add"],
}


def attributed() -> dict[str, ir.Node]:
    model = ir.from_proto(onnx.parser.parse_model(GRAPH.replace("{0}", "{" + "0," * 15 + "0}")))
    for node in model.graph:
        name = str(node.outputs[0].name)
        node.name = f"node_{name}"
        node.metadata_props[SCOPES] = str(PATHS[name])
    scopes = Scopes.of(model)
    for node in model.graph:
        node.metadata_props.clear()
    attribute_nodes(model, scopes, {"xq": "x_q", "wq": "w_q"})
    return {str(node.outputs[0].name): node for node in model.graph}


def test_attribute_nodes_names_the_innermost_module() -> None:
    nodes = attributed()
    layers = {name: node.meta.get(LAYER) for name, node in nodes.items()}
    assert layers == {
        "xq": "x_quantizer",
        "wq": "block.dense.weight_quantizer",
        "a": "block.dense",
        "s": "block.dense",  # by the tensor that it reads
        "b": "block",
        "c": "neg_1",
        "y": "add",
    }


def test_attribute_nodes_sees_through_quantizers() -> None:
    nodes = attributed()
    assert nodes["xq"].meta[ORIGIN] == "x"
    assert nodes["wq"].meta[ORIGIN] == "block.dense"
    assert nodes["a"].meta[ORIGIN] == "block.dense"


def test_attribute_nodes_notes_only_output_of_module() -> None:
    nodes = attributed()
    outputs = {name: node.outputs[0].meta.get(TENSOR) for name, node in nodes.items()}
    assert outputs["b"] == "block"
    assert outputs["a"] == "block.dense"
    assert outputs["c"] == "neg_1"
    assert outputs["y"] == "add"
