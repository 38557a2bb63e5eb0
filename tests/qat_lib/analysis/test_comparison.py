"""How an engine's layers are read and a prediction is scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis import FusionReport, analyze_graph, compare
from qat_lib.analysis.comparison import read_layer_info

INT8, FP32 = "Int8 NC/32HW32", "Row major linear FP32"


def layer(name: str, reads: str = INT8, writes: str = INT8, **fields: Any) -> dict[str, Any]:
    return {
        "Name": name,
        "Inputs": [{"Datatype": reads}],
        "Outputs": [{"Datatype": writes}],
        **fields,
    }


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("a", {"a"}),
        ("a + b", {"a", "b"}),
        ("PWN(a)", {"a"}),
        ("PWN(PWN(a), b) + c", {"a", "b", "c"}),
        ("PWN(PWN(a, b))", {"a", "b"}),
        ("a || b", {"a", "b"}),
        ("{ForeignNode[a...b]}", {"a b"}),
        ("layer(1)x + b", {"layer(1)x", "b"}),
        ("a,b", {"a,b"}),
        (" + a + ", {"a"}),
        ("", set()),
    ],
)
def test_read_layer_info_splits_names(name: str, nodes: set[str]) -> None:
    for entry in (name, {"Name": name}):
        (found,) = read_layer_info([entry])
        assert found.nodes == nodes
        assert found.name == name


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("Reformatting CopyNode for Input Tensor 0 to a", True),
        ("copynode", True),
        ("__myl_Cast_1", True),
        ("__myl_Move_1", True),
        ("__myl_Conv_1", False),
        ({"Name": "a", "LayerType": "Reformat"}, True),
        ({"Name": "a", "LayerType": "Reorder"}, True),
        ({"Name": "a", "LayerType": "Scale"}, False),
        ({"Name": "a_QuantizeLinear_1", "LayerType": "Scale"}, True),
        ({"Name": "a_QuantizeLinear_1", "LayerType": "Convolution"}, False),
        ({"Name": "a_QuantizeLinear_1", "LayerType": "Activation"}, False),
        ({"Name": "a_QuantizeLinear_1", "LayerType": "Unary"}, False),
        ({"Name": "Reformatting a"}, True),
        ({"name": "a", "nodes": [], "kind": "FakeQuantize"}, True),
        ({"name": "a", "nodes": [], "kind": "Convert"}, True),
        ({"name": "a", "nodes": [], "kind": "Convolution"}, False),
        ({"name": "reformat a", "nodes": [], "kind": "Convolution"}, True),
    ],
)
def test_read_layer_info_knows_what_converts(entry: Any, expected: bool) -> None:
    (found,) = read_layer_info([entry])
    assert found.is_reformat is expected


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("int8", True), ("INT8", False), ("fp32", False), ("uint8", False), ("", None), (None, None)],
)
def test_read_layer_info_of_our_own_engine_builds(precision: Any, expected: bool | None) -> None:
    (found,) = read_layer_info(
        [{"name": "a", "nodes": ["b", 3], "precision": precision, "output_precision": "int8"}]
    )
    assert (found.reads_int8, found.writes_int8, found.nodes) == (expected, True, {"b", "3"})
    (found,) = read_layer_info(
        [{"name": "a", "nodes": (), "precision": "int8", "output_precision": precision}]
    )
    assert (found.reads_int8, found.writes_int8) == (True, expected)


@pytest.mark.parametrize(
    ("tensors", "reads", "writes"),
    [
        ([], None, None),
        ([{}], None, None),
        ([{"Datatype": "Int8"}], True, True),
        ([{"Datatype": "Float"}, {}], False, False),
        ([{"Format/Datatype": "Int8", "Datatype": "Float"}], True, True),
        ([{"Datatype": "Int8"}, {"Datatype": "Float"}], True, False),
        ([{"Format": "Row major linear", "DataType": "Int8"}], True, True),
        ([{"Format/Datatype": "Row major Int8 format"}], True, True),
    ],
)
def test_read_layer_info_of_tensors(tensors: Any, reads: bool | None, writes: bool | None) -> None:
    (found,) = read_layer_info({"layers": [{"Name": "a", "Inputs": tensors, "Outputs": tensors}]})
    assert (found.reads_int8, found.writes_int8) == (reads, writes)


def test_read_layer_info_accepts_duplicate_names(tmp_path: Path) -> None:
    """Other programs write these files; that is no reason to refuse one."""
    path = tmp_path / "layers.json"
    path.write_text('{"Layers": [{"Name": "a", "Name": "b"}]}')
    assert [found.name for found in read_layer_info(path)] == ["b"]


def small() -> FusionReport:
    """Two convolutions, the second fused with an Add; another Add alone."""
    g = GraphBuilder()
    x = g.input("x", (1, 16, 8, 8))
    read = g.qdq(x)
    y = g.conv(g.qdq(g.conv(read, 16, 16, name="a")), 16, 16, name="b")
    total = g.op("Add", [y, read], "add/Add")
    g.output(g.op("Add", [g.op("Softmax", [total]), x], "last/Add"), g.qdq(x, 0.2))
    return analyze_graph(g.graph())


def test_compare_counts_and_scores() -> None:
    """One of two layers found is as predicted.

    The Add stands alone where it was predicted to be inside.
    """
    layers = [
        layer("quant_a/Conv", INT8, FP32),
        layer("add/Add"),
        layer("last/Add + quant_c/Conv"),
        layer("x", LayerType="Reformat"),
    ]
    found = compare(small(), layers)
    assert (found.matched, found.unmatched) == (1, ("quant_b/Conv",))
    assert (found.precision_score, found.output_score, found.add_score) == (1.0, 0.0, 0.5)
    assert found.scored == {"precision": 1, "output": 1, "add": 2}
    assert found.engine_conversions == 1
    assert found.engine_layers == 4
    assert [(m.node, m.what, m.predicted, m.found) for m in found.mismatches] == [
        ("quant_a/Conv", "output", "int8", "float"),
        ("add/Add", "add", "quant_b/Conv", "stands alone"),
    ]


def test_compare_counts_the_conversions_that_are_predicted() -> None:
    report = small()
    kinds = [kernel.kind for kernel in report.kernels]
    found = compare(report, ["nothing"])
    assert found.predicted_conversions == kinds.count("reformat") + kinds.count("requantize") > 0
    assert found.predicted_layers == len(report.engine)
    assert (found.precision_score, found.output_score, found.add_score, found.matched) == (
        None,
        None,
        None,
        0,
    )
    assert found.unmatched == ("quant_a/Conv", "quant_b/Conv")


@pytest.mark.parametrize(
    ("built", "found"),
    [
        ("quant_b/Conv + add/Add", ""),
        ("quant_a/Conv + quant_b/Conv + add/Add", ""),
        ("quant_a/Conv + add/Add", "quant_a/Conv"),
        ("add/Add", "stands alone"),
    ],
)
def test_compare_says_where_an_add_went(built: str, found: str) -> None:
    wrong = [m.found for m in compare(small(), [built]).mismatches if m.node == "add/Add"]
    assert wrong == ([found] if found else [])


def test_compare_names_kernel_of_unexpectedly_fused_add() -> None:
    wrong = [
        (m.predicted, m.found) for m in compare(small(), ["quant_b/Conv + last/Add"]).mismatches
    ]
    assert ("stands alone", "quant_b/Conv") in wrong


def test_compare_takes_the_first_layer_that_has_a_node() -> None:
    layers = [layer("quant_a/Conv", FP32, FP32), layer("quant_a/Conv")]
    assert compare(small(), layers).precision_score == 0.0
    assert compare(small(), layers[::-1]).precision_score == 1.0


def test_a_comparison_as_json_lists_its_mismatches() -> None:
    found = compare(small(), [layer("quant_a/Conv", FP32, FP32)])
    assert json.loads(found.to_json()) == json.loads(json.dumps(found.to_dict()))
    assert [each["node"] for each in found.to_dict()["mismatches"]] == ["quant_a/Conv"] * 2
