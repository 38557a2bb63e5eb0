"""Keras layers and quantizers of nodes: from the file, else guessed."""

from __future__ import annotations

import onnx
import pytest

from qat_lib.errors import ExportError
from qat_lib.onnx_view.graph import OnnxGraph
from qat_lib.onnx_view.identity import Identities, guess_layer, guess_quantizer

Q, DQ = "QuantizeLinear", "DequantizeLinear"
KNOWN = Identities(
    layers={"quant_a/Conv": "inner/a", "x/QuantizeLinear": "x"},
    quantizers={"x/QuantizeLinear": "q"},
)


def model_of(*nodes: onnx.NodeProto, **metadata: str) -> onnx.ModelProto:
    """Return a model of chained float nodes from ``x`` to ``y``."""
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("x", "y")]
    model = onnx.helper.make_model(onnx.helper.make_graph(list(nodes), "g", ends[:1], ends[1:]))
    onnx.helper.set_model_props(model, {f"qatline.{key}": text for key, text in metadata.items()})
    return model


def test_identities_come_from_file() -> None:
    assert KNOWN.keras_layer("quant_a/Conv") == "inner/a"
    assert KNOWN.quantizer("x/QuantizeLinear", Q) == "q"
    assert KNOWN.quantizer("quant_a/Conv", "Conv") == ""


def test_identities_of_unlisted_nodes_are_guessed() -> None:
    assert KNOWN.keras_layer("quant_b/Conv") == "b"
    assert KNOWN.quantizer("b_quantizer/DequantizeLinear", DQ) == "b_quantizer"
    assert KNOWN.quantizer("b/Conv", "Conv") == ""


def test_identities_round_trip_through_metadata() -> None:
    assert Identities.of_metadata(KNOWN.to_metadata()) == KNOWN
    assert Identities.of_metadata({}) == Identities()


def test_identities_are_written_once_for_each_layer_and_quantizer() -> None:
    layers = dict.fromkeys(("r", "s", "q", "d"), "a") | {"t": "b"}
    entries = Identities(layers=layers, quantizers={"q": "a_q", "d": "a_q"}).to_metadata()
    assert entries == {"nodes": '{"a":{"":["r","s"],"a_q":["q","d"]},"b":{"":["t"]}}'}


@pytest.mark.parametrize(
    "text", ["[]", "{", "", '{"a": 1}', '{"a": {"": "n"}}', '{"a": {"": [1]}}', '{"a": {"": {}}}']
)
def test_damaged_identities_are_refused(text: str) -> None:
    with pytest.raises(ExportError, match=r"metadata qatline\.nodes"):
        Identities.of_metadata({"nodes": text})
    node = onnx.helper.make_node("Relu", ["x"], ["y"], "r")
    with pytest.raises(ExportError, match=r"metadata qatline\.nodes"):
        OnnxGraph(model_of(node, nodes=text))


def test_layers_of_a_quantizer_are_those_of_its_nodes() -> None:
    layers = {"a/Q": "a", "a/DQ": "a", "b/Q": "b", "c/Relu": "c"}
    known = Identities(layers=layers, quantizers=dict.fromkeys(("a/Q", "a/DQ", "b/Q"), "q"))
    assert known.layers_of("q") == ("a", "b")
    assert known.layers_of("") == ()


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("quant_conv1/Conv", "conv1"),
        ("conv1/Conv", "conv1"),
        ("relu_quantizer/QuantizeLinear", "relu"),
        ("/layer1/layer1.0/conv1/Conv", "layer1/layer1.0/conv1"),
        ("/Conv", "Conv"),
        ("Conv_3", "Conv_3"),
        ("quant_", "quant_"),
        ("quant_/Conv", "quant_"),
        ("", ""),
    ],
)
def test_guess_layer_reads_the_names_of_two_producers(name: str, layer: str) -> None:
    assert guess_layer(name) == layer


def test_guess_quantizer_takes_the_operator_off() -> None:
    assert guess_quantizer("a/b_quantizer/QuantizeLinear_2") == "a/b_quantizer"
    assert guess_quantizer("QuantLinearNode__3") == ""


def test_graph_nodes_carry_their_identity() -> None:
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["r"], "quant_a/Conv"),
        onnx.helper.make_node("Neg", ["r"], ["y"]),
    ]
    graph = OnnxGraph(model_of(*nodes, **KNOWN.to_metadata()))
    assert [(node.keras_layer, node.quantizer) for node in graph.nodes] == [
        ("inner/a", ""),
        ("Neg_1", ""),
    ]
    assert [graph.keras_layer(name) for name in ("quant_a/Conv", "r", "y", "x")] == [
        "inner/a",
        "inner/a",
        "Neg_1",
        "x",
    ]
