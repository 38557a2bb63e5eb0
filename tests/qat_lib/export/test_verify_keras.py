"""Verification of exported Keras models that somebody changed."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import qat_lib
from qat_lib.errors import ExportError

keras = pytest.importorskip("keras")
layers = keras.layers


@pytest.fixture
def edited(exported, tmp_path):
    """Return a function that edits and verifies a copied file."""

    def edit(change):
        proto = onnx.load(exported)
        change(proto)
        path = Path(tmp_path / "edited.onnx")
        onnx.save(proto, path)
        return {
            finding.code for finding in qat_lib.verify_onnx(path) if finding.severity == "error"
        }

    return edit


def tensor_of(proto, name):
    return next(t for t in proto.graph.initializer if t.name == name)


def scaled(name, factor):
    def change(proto):
        tensor = tensor_of(proto, name)
        array = (onnx.numpy_helper.to_array(tensor) * np.float32(factor)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))

    return change


def flip_one_integer(proto):
    tensor = tensor_of(proto, "stem_kernel_quantizer/integers")
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.flat[0] ^= 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def drop_a_pair(proto):
    quantize = next(n for n in proto.graph.node if n.name == "image_quantizer/QuantizeLinear")
    dequantize = next(n for n in proto.graph.node if n.name == "image_quantizer/DequantizeLinear")
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            if name == dequantize.output[0]:
                node.input[index] = quantize.input[0]
    proto.graph.node.remove(quantize)
    proto.graph.node.remove(dequantize)


def turn_the_axis(name):
    def change(proto):
        node = next(n for n in proto.graph.node if n.name == f"{name}/DequantizeLinear")
        (axis,) = (a for a in node.attribute if a.name == "axis")
        axis.i = 1 - axis.i

    return change


def put_an_operator_between(proto):
    dequantize = next(n for n in proto.graph.node if n.name == "image_quantizer/DequantizeLinear")
    index = list(proto.graph.node).index(dequantize)
    proto.graph.node.insert(
        index, onnx.helper.make_node("Identity", [dequantize.input[0]], ["between"], "between")
    )
    dequantize.input[0] = "between"


def let_one_reader_pass_by(proto):
    """Let one of two readers bypass the pair."""
    made = {n.output[0]: n for n in proto.graph.node if n.op_type == "QuantizeLinear"}
    for dequantize in (
        n for n in proto.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in made
    ):
        readers = [n for n in proto.graph.node if dequantize.output[0] in n.input]
        if len(readers) > 1:
            readers[0].input[list(readers[0].input).index(dequantize.output[0])] = made[
                dequantize.input[0]
            ].input[0]
            return
    raise LookupError("no tensor has two readers")


def quantize_once_more(proto):
    """Append a second, equal pair of the same quantizer."""
    names = ("image_quantizer/QuantizeLinear", "image_quantizer/DequantizeLinear")
    quantize, dequantize = (n for n in proto.graph.node if n.name in names)
    readers = [n for n in proto.graph.node if dequantize.output[0] in n.input]
    more = []
    for node, source, output in ((quantize, dequantize.output[0], "q2"), (dequantize, "q2", "dq2")):
        more.append(
            onnx.helper.make_node(
                node.op_type, [source, *node.input[1:]], [output], f"{node.name}_1", axis=1
            )
        )
    for node in readers:
        node.input[list(node.input).index(dequantize.output[0])] = "dq2"
    index = list(proto.graph.node).index(dequantize) + 1
    nodes = [*proto.graph.node[:index], *more, *proto.graph.node[index:]]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def rename_a_quantizer(proto):
    for node in proto.graph.node:
        node.name = node.name.replace("image_quantizer", "stranger")


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda proto: None, set()),
        (scaled("image_quantizer/scale", 1.000001), {"Q03"}),
        (scaled("stem_kernel_quantizer/scale", 1.0001), {"Q03"}),
        (flip_one_integer, {"Q04"}),
        (drop_a_pair, {"Q01"}),
        (turn_the_axis("stem_kernel_quantizer"), {"Q03", "V04"}),
        (turn_the_axis("main_kernel_quantizer"), {"Q03"}),
        (put_an_operator_between, {"Q05"}),
        (let_one_reader_pass_by, {"Q05"}),
        (quantize_once_more, {"Q02", "Q05"}),
        (rename_a_quantizer, {"Q01", "Q02"}),
        (lambda proto: proto.graph.node[-1].ClearField("output"), {"C01"}),
    ],
    ids=[
        "untouched",
        "activation scale",
        "weight scale",
        "integer",
        "folded",
        "axis",
        "square axis",
        "between",
        "passed by",
        "twice",
        "renamed",
        "broken",
    ],
)
def test_whatever_a_tool_changes_is_found(edited, change, codes):
    assert codes <= edited(change)
    assert codes or edited(change) == set()


def test_a_foreign_file_is_checked_for_legality_only(tmp_path):
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x) => (float[1,4] y)
        <float s = {0.1}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z) }"""
    path = tmp_path / "foreign.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    codes = {finding.code for finding in qat_lib.verify_onnx(path)}
    assert {"V02", "V03"} <= codes
    assert not {code for code in codes if code.startswith("Q")}


def test_float_export_quantized_elsewhere_is_foreign(network, plan, tmp_path):
    path = tmp_path / "float.onnx"
    qat_lib.export_onnx(network, path)
    proto = onnx.load(path)
    for name, value in (("s", np.float32(0.1)), ("z", np.int8(0))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    node = next(n for n in proto.graph.node if n.op_type == "Conv")
    for op_type, source, output in (
        ("QuantizeLinear", node.input[0], "q"),
        ("DequantizeLinear", "q", "dq"),
    ):
        made = onnx.helper.make_node(
            op_type, [source, "s", "z"], [output], f"added_{op_type}", axis=1
        )
        proto.graph.node.insert(list(proto.graph.node).index(node), made)
    node.input[0] = "dq"
    onnx.save(proto, path)
    assert qat_lib.verify_onnx(path) == []
    assert {f.code for f in qat_lib.verify_onnx(path, plan)} >= {"Q01", "Q02"}


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08"])
def test_what_is_no_model_is_one_message(tmp_path, content):
    path = tmp_path / "no.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="Expected an ONNX"):
        qat_lib.verify_onnx(path)


def test_a_broken_record_is_said(exported, tmp_path):
    proto = onnx.load(exported)
    for entry in proto.metadata_props:
        if entry.key == "qatline.quantizers":
            entry.value = '{"activations": 3}'
    onnx.save(proto, tmp_path / "record.onnx")
    with pytest.raises(ExportError, match="record"):
        qat_lib.verify_onnx(tmp_path / "record.onnx")
