"""The catalog, the gate and the report as data and as a table."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from onnx_graphs import GraphBuilder
from resnet50_graph import resnet50
from rich.console import Console

import qat_lib.analysis
from qat_lib.analysis import CATALOG, analyze_graph, analyze_onnx, by_severity, fail_on
from qat_lib.analysis.findings import make_finding
from qat_lib.analysis.table import render
from qat_lib.errors import ConfigError
from qat_lib.onnx_view.names import keras_layer


def test_catalog_has_every_code_and_only_codes_that_rules_use() -> None:
    assert set(CATALOG) == {f"V{number:02d}" for number in range(1, 29)} | {"H1", "H2", "H3"}
    source = "".join(
        path.read_text() for path in Path(qat_lib.analysis.__file__).parent.rglob("rules/*.py")
    )
    assert set(re.findall(r'"([VH]\d+)"', source)) == set(CATALOG)


def some(*severities: str) -> list[qat_lib.analysis.Finding]:
    codes = {"error": "V01", "warning": "V15", "info": "V11"}
    return [make_finding(codes[severity], "node", "What.", "Do.", "D") for severity in severities]


@pytest.mark.parametrize(
    ("gate", "closing"), [("error", 1), ("warning", 2), ("never", 0), (None, 0)]
)
def test_gate(gate: str | None, closing: int) -> None:
    assert len(fail_on(some("info", "warning", "error"), gate)) == closing
    assert fail_on(some("info"), gate) == []


def test_gate_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="'error', 'warning' or 'never'"):
        fail_on([], "info")


def test_severe_findings_come_first() -> None:
    assert [finding.severity for finding in by_severity(some("info", "error", "warning"))] == [
        "error",
        "warning",
        "info",
    ]


@pytest.mark.parametrize(
    ("node", "layer"),
    [
        ("quant_conv1/Conv", "conv1"),
        ("conv1/Conv", "conv1"),
        ("relu_quantizer/QuantizeLinear", "relu"),
        ("/layer1/layer1.0/conv1/Conv", "layer1/layer1.0/conv1"),
        ("/Relu", "Relu"),
        ("Conv_12", "Conv_12"),
        ("quant_", "quant_"),
    ],
)
def test_keras_layer(node: str, layer: str) -> None:
    assert keras_layer(node) == layer


def test_report_is_plain_json(tmp_path: Path) -> None:
    report = analyze_onnx(resnet50("conv-only").save(tmp_path / "model.onnx"))
    data = json.loads(report.to_json())
    assert data["summary"]["warnings"] == 16
    assert data["model"].endswith("model.onnx")
    assert {"name", "keras_layer", "op_type", "precision", "macs"} <= data["layers"][0].keys()
    assert {"name", "fused_into", "precision"} <= data["adds"][0].keys()
    assert {"code", "severity", "node", "message", "advice", "confidence"} <= data["findings"][
        0
    ].keys()
    assert data["findings"][0]["keras_layer"]


def text(report: qat_lib.analysis.FusionReport, **options: bool) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(report, **options))
    return console.export_text()


def test_table_groups_findings_of_a_kind() -> None:
    report = analyze_graph(resnet50("conv-only").graph(), model="dir/[model].onnx")
    short, long = text(report), text(report, all_findings=True)
    assert "54 of 54 (100.0% of the MACs)" in short
    assert "[model].onnx" in short
    assert "and 15 more" in short
    assert short.count("V15") < long.count("V15")
    assert "0 errors, 16 warnings, 17 infos" in short
    kernels = ", ".join(f"{count} {kind}" for kind, count in report.summary()["kernels"].items())
    assert kernels
    assert re.search(rf"stand-alone kernels\W+{kernels}", short)


def test_table_of_a_graph_without_weights() -> None:
    g = GraphBuilder()
    g.output(g.op("Relu", [g.input()]))
    assert "0 errors, 0 warnings, 0 infos" in text(analyze_graph(g.graph()))
