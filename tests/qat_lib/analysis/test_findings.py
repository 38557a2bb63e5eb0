"""The catalog, the gate and the report, as data and table."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from onnx_graphs import GraphBuilder
from resnet50_graph import resnet50
from rich.console import Console

import qat_lib.analysis
from qat_lib.analysis import CATALOG, analyze_graph, analyze_onnx, by_severity, fail_on, rules
from qat_lib.analysis.catalog import collect_rules
from qat_lib.analysis.findings import Rule, Severity
from qat_lib.analysis.table import render
from qat_lib.errors import ConfigError
from qat_lib.onnx_view.graph import Node

RULE = Rule("X1", "warning", "an example", "P5 D", "E")


def test_catalog_has_every_code() -> None:
    numbered = {f"V{number:02d}" for number in range(1, 29)}
    verified = {"C01", "C02", "Q01", "Q02", "Q03", "Q04", "Q05"}
    assert list(CATALOG) == sorted(numbered | verified | {"H1", "H2", "H3"})
    assert all(rule.code == code and rule.title for code, rule in CATALOG.items())


def test_each_file_of_rules_is_registered() -> None:
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")}
    assert files == {"__init__", *rules.ENGINE_RULES, *rules.GRAPH_RULES}
    assert len(list(rules.engine_checks())) == len(rules.ENGINE_RULES)


def test_collect_rules_refuses_a_code_declared_twice() -> None:
    first, again = ModuleType("first"), ModuleType("again")
    vars(first).update(X1=RULE)
    vars(again).update(X1=RULE, X2=Rule("X2", "info", "another"))
    assert collect_rules([first, again]) == {"X1": RULE, "X2": again.X2}
    vars(again).update(X1=Rule("X1", "warning", "an example", "P5 D", "E"))
    with pytest.raises(ValueError, match="X1 again in again; the first is 'an example'"):
        collect_rules([first, again])


def test_rule_at_node_has_default_values() -> None:
    node = Node(
        index=0,
        name="q/QuantizeLinear",
        op="QuantizeLinear",
        inputs=(),
        outputs=(),
        keras_layer="conv1",
        quantizer="q",
    )
    assert RULE.at(node, message="What.", advice="Do.").to_dict() == {
        "code": "X1",
        "severity": "warning",
        "node": "q/QuantizeLinear",
        "message": "What.",
        "advice": "Do.",
        "confidence": "E",
        "rule": "P5",
        "keras_layer": "conv1",
        "quantizer": "q",
    }


def test_rule_at_a_node_takes_what_differs() -> None:
    found = RULE.at(
        "model.onnx",
        message="What.",
        advice="Do.",
        rule="D",
        severity="info",
        confidence="I",
        layer="",
    )
    assert (found.node, found.rule, found.severity) == ("model.onnx", "D", "info")
    assert (found.confidence, found.keras_layer) == ("I", "")


def test_rule_without_others_behind_it_is_its_own() -> None:
    found = Rule("X2", "error", "another").at("node", message="What.", advice="Do.")
    assert (found.rule, found.confidence) == ("X2", "D")


def some(*severities: Severity) -> list[qat_lib.analysis.Finding]:
    return [
        RULE.at("node", message="What.", advice="Do.", severity=severity) for severity in severities
    ]


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
