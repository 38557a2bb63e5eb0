"""The report: figures, JSON, table and the page's data."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from qat_lib.analysis import CATALOG, to_html
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.report import (
    AddVerdict,
    FusionReport,
    KernelVerdict,
    LayerVerdict,
    PoolVerdict,
)
from qat_lib.analysis.table import render
from qat_lib.pages.graph import GraphEdge, GraphNode, GraphView

EMPTY = FusionReport(
    model="",
    target="tensorrt",
    exported_for=None,
    layers=(),
    adds=(),
    pools=(),
    kernels=(),
    engine=(),
    islands=(),
    findings=(),
    drawing=GraphView(),
)


def layer(name: str, precision: Any = "int8", share: float = 0.0, **options: Any) -> LayerVerdict:
    fields = {
        "op_type": "Conv",
        "writes": "int8",
        "float_type": "float32",
        "macs": 0,
        "kernel": name,
        **options,
    }
    return LayerVerdict(
        name=f"quant_{name}/Conv", keras_layer=name, precision=precision, macs_share=share, **fields
    )


def add(rule: str = "F1", precision: str = "int8", into: str | None = None) -> AddVerdict:
    return AddVerdict(
        name="add/Add", keras_layer="add", fused_into=into, precision=precision, rule=rule
    )


def pool(precision: str) -> PoolVerdict:
    return PoolVerdict(name="pool", keras_layer="pool", op_type="MaxPool", precision=precision)


def kernel(kind: str, detail: str = "") -> KernelVerdict:
    return KernelVerdict(
        kind=kind, detail=detail, name="k", keras_layer="k", reads="int8", writes="float"
    )


def finding(code: str, layer: str = "", severity: Any = None) -> Finding:
    return CATALOG[code].at(
        "node",
        message=f"{code} is so.",
        advice="Mend it.",
        severity=severity,
        confidence="D",
        layer=layer,
    )


FULL = replace(
    EMPTY,
    model="dir/[model].onnx",
    layers=(
        layer("a", share=0.25),
        layer("b", "mixed", 0.5),
        layer("c", share=0.125),
        layer("d", "float", 0.125),
    ),
    adds=(add(into="a"), add("F6"), add("F2", "float", into="b"), add("F5", "float")),
    pools=(pool("int8"), pool("float"), pool("int8")),
    kernels=(kernel("reformat", "quantize"), kernel("elementwise"), kernel("reformat", "quantize")),
    engine=(kernel("weighted"),) * 5,
    islands=(("x", "y"), ("z",)),
    findings=(
        finding("V01"),
        finding("V08"),
        finding("V11"),
        finding("V09"),
        finding("V11"),
        finding("V11"),
    ),
)


def test_summary() -> None:
    assert FULL.summary() == {
        "weighted_layers": 4,
        "int8_layers": 2,
        "int8_macs_share": 0.375,
        "adds": 3,
        "fused_adds": 2,
        "int8_adds": 2,
        "pools": 3,
        "int8_pools": 2,
        "engine_layers": 5,
        "kernels": {"quantize": 2, "elementwise": 1},
        "islands": 2,
        "errors": 1,
        "warnings": 2,
        "infos": 3,
    }


def test_the_share_of_the_work_has_six_digits() -> None:
    assert (
        replace(EMPTY, layers=(layer("a", share=1 / 3),)).summary()["int8_macs_share"] == 0.333333
    )


def test_a_report_as_data_leaves_the_drawing_out() -> None:
    data = json.loads(FULL.to_json())
    assert data == FULL.to_dict() | {
        key: data[key] for key in ("layers", "adds", "pools", "kernels", "engine")
    } | {
        "islands": [["x", "y"], ["z"]],
        "findings": data["findings"],
    }
    assert (data["version"], "drawing" in data) == (1, False)
    assert [each["name"] for each in data["layers"]] == [f"quant_{name}/Conv" for name in "abcd"]
    assert FULL.drawing is EMPTY.drawing


def test_a_report_as_json_has_numbers_only() -> None:
    with pytest.raises(ValueError, match="JSON"):
        replace(EMPTY, layers=(layer("a", share=float("nan")),)).to_json()


def test_reports_are_compared_without_their_drawings() -> None:
    other = replace(EMPTY, drawing=GraphView(anchors={"a": 1}))
    assert other == EMPTY
    assert "Drawing" not in repr(EMPTY)


def lines(report: FusionReport, **options: bool) -> list[str]:
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(render(report, **options))
    return [
        " ".join(re.sub(r"[^\w\s.,:%()\[\]/-]", " ", line).split())
        for line in console.export_text().splitlines()
    ]


def test_table_of_figures() -> None:
    found = lines(FULL)
    assert found[0] == "dir/[model].onnx"
    assert {
        "weighted layers in INT8 2 of 4 (37.5% of the MACs)",
        "residual Adds fused 2 of 3, 2 in INT8",
        "pools in INT8 2 of 3",
        "stand-alone kernels 2 quantize, 1 elementwise",
        "floating-point islands 2",
        "predicted engine layers 5",
    } <= set(found)


def test_table_of_an_empty_report() -> None:
    found = lines(EMPTY)
    assert "stand-alone kernels none" in found
    assert "0 errors, 0 warnings, 0 infos. Codes: none" in found
    assert not {"Weighted layers", "Findings"} & set(found)
    assert "Weighted layers" in lines(replace(EMPTY, layers=(layer("a"),)))
    assert "Findings" in lines(replace(EMPTY, findings=(finding("V01"),)))


def test_table_joins_consecutive_layers_of_equal_verdict() -> None:
    report = replace(
        EMPTY,
        layers=(
            layer("a", share=0.1),
            layer("b", share=0.2),
            layer("c", share=0.3),
            layer("d", share=0.05, writes="float"),
            layer("e", "float", 0.05, writes="float", float_type="float16"),
            layer("f", "mixed", 0.05, writes="float"),
            layer("[g]", share=0.05),
            layer("h", share=0.1, op_type="MatMul"),
            layer("i", share=0.1, op_type="MatMul"),
        ),
    )
    found = lines(report)
    start = next(index for index, line in enumerate(found) if line.startswith("layers operator"))
    assert [line for line in found[start + 1 :] if line][:6] == [
        "a ... c (3) Conv int8 int8 60.0%",
        "d Conv int8 float 5.0%",
        "e Conv float16 float 5.0%",
        "f Conv mixed float 5.0%",
        "[g] Conv int8 int8 5.0%",
        "h ... i (2) MatMul int8 int8 20.0%",
    ]


def raw_lines(report: FusionReport, width: int) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(report))
    return console.export_text().splitlines()


def test_table_has_its_shares_on_the_right() -> None:
    shares = raw_lines(replace(EMPTY, layers=(layer("a", share=1.0), layer("b", "float"))), 100)
    heading = next(line for line in shares if "operator" in line)
    first, second = (line for line in shares if "Conv" in line)
    assert first.index("100.0%") + 2 == second.index("0.0%")
    assert heading.index("operator") == first.index("Conv") == second.index("Conv")


def test_table_leaves_the_text_its_room_beside_long_names() -> None:
    found = raw_lines(replace(EMPTY, findings=(finding("V01", "n" * 60),)), 80)
    assert [line.count("n" * 24) for line in found if "nnn" in line] == [1, 1, 0]
    assert not any("n" * 25 in line for line in found)


def kinds(*layers: str, code: str = "V11") -> FusionReport:
    return replace(EMPTY, findings=tuple(finding(code, name) for name in layers))


@pytest.mark.parametrize(
    ("layers", "more"),
    [
        (("a",), None),
        (("a", "b"), "... and 1 more: b"),
        (("a", "b", "c", "b"), "... and 3 more: b, c"),
        (tuple("abcdef"), "... and 5 more: b, c, d, e, f"),
        (tuple("abcdefg"), "... and 6 more: b, c, d, e, f, ..."),
        (("a", "", ""), "... and 2 more: node"),
    ],
)
def test_table_lets_one_finding_stand_for_its_kind(
    layers: tuple[str, ...], more: str | None
) -> None:
    short, long = lines(kinds(*layers)), lines(kinds(*layers), all_findings=True)
    assert [line for line in short if "more:" in line] == ([more] if more else [])
    assert sum("V11 is so." in line for line in short) == 1
    assert sum("V11 is so." in line for line in long) == len(layers)
    assert not any("more:" in line for line in long)
    assert f"V11 {layers[0]} V11 is so." in short


def test_table_names_nodes_without_layers_worst_first() -> None:
    found = lines(
        replace(EMPTY, findings=(finding("V11", "c"), finding("V08"), finding("V11", "d", "error")))
    )
    starts = [line for line in found if "is so." in line]
    assert starts == ["V11 d V11 is so.", "V08 node V08 is so.", "V11 c V11 is so."]


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        (("V01",), "1 error, 0 warnings, 0 infos."),
        (("V08", "V09"), "0 errors, 2 warnings, 0 infos."),
        (("V11",), "0 errors, 0 warnings, 1 info."),
    ],
)
def test_table_closes_with_the_counts_and_the_codes(codes: tuple[str, ...], verdict: str) -> None:
    found = " ".join(
        lines(replace(EMPTY, findings=tuple(finding(code) for code in reversed(codes))))
    )
    assert verdict in found
    assert re.search(rf"Codes: {'.*, '.join(codes)} ", found)


def test_page_marks_boxes_and_links_findings() -> None:
    drawing = GraphView(
        nodes=(GraphNode(title="a", kind="Conv"), GraphNode(title="end", kind="Output")),
        edges=(GraphEdge(source=0, target=1, quantized=True),),
        anchors={"node": 0, "end": 1},
    )
    found = (finding("V08"), finding("V01"), finding("V08", "nowhere", "info"))
    page = to_html(replace(FULL, drawing=drawing, findings=found))
    assert "dir/[model].onnx" in page
    # The colour is that of the worst finding, the text names both.
    (marked,) = re.findall(r'<g class="node neutral error" id="node-0".*?</title>', page, re.DOTALL)
    assert marked.index("V01 error") < marked.index("V08 warning")
    assert page.count('<a href="#node-0"><code>node</code></a>') == 2
    assert "<code>nowhere</code>" in page
    for figure in (
        "errors: 1, warnings: 1, hints: 1",
        "37.5% of the multiply-accumulates",
        "2 of 3",
        "stand-alone: 2 quantize, 1 elementwise; floating-point islands: 2",
    ):
        assert figure in page, figure


def test_page_without_a_picture_links_nothing() -> None:
    drawing = GraphView(nodes=(GraphNode(title="a", kind="Conv"),) * 3001, anchors={"node": 0})
    page = to_html(replace(FULL, drawing=drawing, findings=(finding("V01"),)))
    assert "too many nodes for a picture" in page
    assert 'href="#node-' not in page


@pytest.mark.parametrize(
    ("exported_for", "words"),
    [(None, ""), ("tensorrt", ""), ("openvino", "exported for openvino")],
)
def test_target_note_names_another_target(exported_for: str | None, words: str) -> None:
    note = replace(EMPTY, exported_for=exported_for).target_note
    assert words in note
    assert bool(note) is bool(words)
