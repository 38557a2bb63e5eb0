"""Predictions and engine layers are joined by their ONNX nodes' names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from resnet50_graph import resnet50

from qat_lib.analysis import FusionReport, analyze_graph, compare
from qat_lib.analysis.comparison import read_layer_info
from qat_lib.errors import ConfigError

INT8 = "Thirty-two wide channel vectorized row major Int8 format"
FP32 = "Row major linear FP32"


@pytest.fixture(scope="module")
def report() -> FusionReport:
    return analyze_graph(resnet50("residual").graph())


def tensor(text: str) -> list[dict[str, Any]]:
    return [{"Name": "t", "Dimensions": [1, 8], "Format/Datatype": text}]


def layer(name: str, reads: str = INT8, writes: str = INT8, **fields: Any) -> dict[str, Any]:
    return {
        "Name": name,
        "LayerType": "CaskConvolution",
        "Inputs": tensor(reads),
        "Outputs": tensor(writes),
        **fields,
    }


def as_built(report: FusionReport) -> list[dict[str, Any]]:
    """The engine that was predicted, written as TensorRT writes it."""
    found = []
    for kernel in report.engine:
        kind = "Reformat" if kernel.kind == "reformat" else "CaskConvolution"
        weights = f"weight + QuantizeLinear_{len(found)} + " if kernel.kind == "weighted" else ""
        formats = {"int8": INT8, "float": FP32}
        found.append(
            layer(
                weights + kernel.name, formats[kernel.reads], formats[kernel.writes], LayerType=kind
            )
        )
    return found


def test_a_prediction_that_came_true_scores_one(report: FusionReport) -> None:
    found = compare(report, {"Layers": as_built(report)})
    assert (found.precision_score, found.output_score, found.add_score) == (1.0, 1.0, 1.0)
    assert found.matched == 54
    assert found.unmatched == found.mismatches == ()
    assert found.predicted_conversions == found.engine_conversions == 1
    assert found.predicted_layers == found.engine_layers


def test_a_layer_in_floating_point_is_a_mismatch(report: FusionReport) -> None:
    layers = as_built(report)
    layers[0] = layer(layers[0]["Name"], FP32, FP32)
    found = compare(report, layers)
    assert found.precision_score == pytest.approx(53 / 54)
    assert [(m.node, m.what, m.predicted, m.found) for m in found.mismatches] == [
        ("quant_conv1_conv/Conv", "precision", "int8", "float"),
        ("quant_conv1_conv/Conv", "output", "int8", "float"),
    ]


def test_add_alone_or_elsewhere_is_mismatch(report: FusionReport) -> None:
    layers = [
        layer("quant_conv2_block1_3_conv/Conv"),
        layer("PWN(conv2_block1_add/Add, conv2_block1_out/Relu)"),
        layer("quant_conv2_block2_1_conv/Conv + conv2_block2_add/Add"),
    ]
    found = [(m.node, m.found) for m in compare(report, layers).mismatches if m.what == "add"]
    assert found == [
        ("conv2_block1_add/Add", "stands alone"),
        ("conv2_block2_add/Add", "quant_conv2_block2_1_conv/Conv"),
    ]


def test_names_only_scores_fusion_but_not_precision(report: FusionReport) -> None:
    found = compare(report, [entry["Name"] for entry in as_built(report)])
    assert (found.precision_score, found.output_score, found.add_score) == (None, None, 1.0)
    assert found.matched == 54


def test_metadata_finds_nodes_that_the_name_hides(report: FusionReport) -> None:
    metadata = "[ONNX Layer: quant_conv1_conv/Conv]\x1f[ONNX Layer: relu1/Relu]"
    assert compare(report, [layer("__myl_Conv_myl0_3", Metadata=metadata)]).matched == 1
    assert compare(report, [layer("__myl_Conv_myl0_3")]).matched == 0


def test_reformat_with_layer_name_is_no_layer(report: FusionReport) -> None:
    name = "Reformatting CopyNode for Input Tensor 0 to quant_conv1_conv/Conv"
    found = compare(report, [name, "quant_conv1_conv/Conv + relu1/Relu"])
    assert (found.matched, found.engine_conversions) == (1, 1)


def test_layers_of_our_own_engine_builds(report: FusionReport) -> None:
    own = {
        "backend": "openvino",
        "layers": [
            {"name": "c", "kind": "Convolution", "nodes": ["quant_conv1_conv/Conv"], "precision": "int8",
             "output_precision": "fp32", "weighted": True, "time_ms": None, "kernel": ""},
        ],
    }  # fmt: skip
    found = compare(report, own)
    assert (found.precision_score, found.output_score) == (1.0, 0.0)


def test_file_round_trip(report: FusionReport, tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"Layers": as_built(report), "Bindings": []}))
    found = compare(report, path)
    assert json.loads(found.to_json())["precision_score"] == 1.0


@pytest.mark.parametrize("content", ["", "{}", "[]", "3", '{"Layers": [3]}', '{"Layers": {}}'])
def test_a_file_without_layers_is_refused(
    report: FusionReport, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "layers.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="Expected the layers"):
        compare(report, path)


def test_a_missing_file_is_refused(report: FusionReport, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.json"):
        compare(report, tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("entry", "reads"),
    [
        ({"Name": "conv", "Inputs": 5}, None),
        ({"Name": "conv", "Inputs": [{"Datatype": "Int8"}, 3]}, True),
    ],
)
def test_read_layer_info_ignores_unknown_tensors(entry: dict[str, Any], reads: bool | None) -> None:
    (layer,) = read_layer_info([entry])
    assert layer.reads_int8 is reads


def test_read_layer_info_refuses_nodes_that_are_no_list() -> None:
    with pytest.raises(
        ConfigError, match=r"the nodes of layer 'conv' as a list of names\. Received: 3"
    ):
        read_layer_info([{"name": "conv", "nodes": 3}])


def test_read_layer_info_parses_brackets_linearly() -> None:
    """A quadratic split would take minutes."""
    (layer,) = read_layer_info([{"Name": f"a{')' * 300_000}b + c"}])
    assert "c" in layer.nodes


def test_read_layer_info_reports_int8_input_output() -> None:
    """INT8 input means any INT8 input; INT8 output means all outputs."""
    mixed = [*tensor(INT8), *tensor(FP32)]
    (layer_of_both,) = read_layer_info([{"Name": "conv", "Inputs": mixed, "Outputs": mixed}])
    assert (layer_of_both.reads_int8, layer_of_both.writes_int8) == (True, False)
    (whole,) = read_layer_info([{"Name": "conv", "Inputs": tensor(FP32), "Outputs": tensor(INT8)}])
    assert (whole.reads_int8, whole.writes_int8) == (False, True)
