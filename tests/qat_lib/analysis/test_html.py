"""The page: self-contained, safe with any name, without overlaps, interactive in browsers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from onnx_graphs import GraphBuilder
from resnet50_graph import resnet50

from qat_lib.analysis import FusionReport, analyze_graph, to_html


def resnet(placement: Any = "conv-only") -> FusionReport:
    return analyze_graph(resnet50(placement).graph(), model="model.onnx")


def data(page: str) -> dict[str, Any]:
    match = re.search(r"^const data = (.*);$", page, re.MULTILINE)
    assert match is not None
    return dict(json.loads(match.group(1)))


def test_page_needs_nothing_else() -> None:
    page = to_html(resnet())
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|\bsrc=|@import|url\(", page)


def test_boxes_edges_and_findings() -> None:
    report = resnet()
    found = data(to_html(report))
    boxes = {box[0]: box for box in found["boxes"]}
    names = [box[0] for box in found["boxes"]]
    assert boxes["quant_conv1_conv/Conv"][1:4] == ["Conv", "conv1_conv", "int8"]
    edges = {(names[edge[0]], names[edge[1]]): edge[2:4] for edge in found["edges"]}
    assert edges["image", "quant_conv1_conv/Conv"] == [
        pytest.approx(0.1),
        "image_quantizer/QuantizeLinear",
    ]
    # The Q behind the pool has moved up.
    assert edges["relu1/Relu", "pool1/MaxPool"] == [pytest.approx(0.1), ""]
    assert edges["conv5_block3_out/Relu", "quant_avg_pool/GlobalAveragePool"][0] is not None
    assert all(finding["box"] >= 0 for finding in found["findings"])
    marked = {names[finding["box"]] for finding in found["findings"] if finding["code"] == "H2"}
    assert marked == {"image"}
    # Fused Adds, the classifier, convolutions on shortcuts.
    assert sum(box[4] for box in found["boxes"]) == 16 + 1 + 4


def test_names_cannot_leave_the_data() -> None:
    name = "</script><script>alert(1)</script><!--"
    g = GraphBuilder()
    g.output(g.op("Relu", [g.input()], name))
    page = to_html(analyze_graph(g.graph(), model=name))
    assert page.count("<script>") == 1
    assert data(page)["boxes"][1][0] == name


def test_scale_that_is_no_number() -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input(), float("nan")), 16, 16))
    assert "nan" in {edge[2] for edge in data(to_html(analyze_graph(g.graph())))["edges"]}


def test_empty_graph() -> None:
    g = GraphBuilder()
    g.output(g.input())
    assert len(data(to_html(analyze_graph(g.graph())))["boxes"]) == 2


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours by WCAG 2."""
    bright, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_enough_contrast() -> None:
    light, dark = re.findall(r":root \{(.*?)\}", to_html(resnet()), re.DOTALL)[:2]
    for scheme in (light, dark):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for box in ("int8", "mixed", "half", "float", "plain", "error", "warning", "info"):
            assert contrast(colours["label"], colours[box]) >= 4.5, box
        for text in ("ink", "soft"):
            for ground in ("page", "panel"):
                assert contrast(colours[text], colours[ground]) >= 4.5, text
        for text in ("error", "warning", "info"):
            assert contrast(colours[text], colours["panel"]) >= 4.5, text


SCRIPT = """
<script>
addEventListener("load", () => {
  byId("query").value = "conv3_block1"; search();
  byId("search").requestSubmit();
  document.querySelector("details").open = true;
  const pixels = paint.getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
  const before = view.zoom;
  canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, bubbles: true, cancelable: true }));
  const result = { hits: hits.length, selected: data.boxes[selected][NAME], colours: colours.size,
    zoomed: view.zoom > before, errors: window.failures };
  const legend = byId("legend").getBoundingClientRect(), stage = canvas.getBoundingClientRect();
  result.covered = Math.max(0, legend.bottom - stage.top);
  const reached = new Set();
  const press = (key) => { canvas.dispatchEvent(new KeyboardEvent("keydown", { key })); reached.add(selected); };
  select(-1);
  data.boxes.forEach(() => press("ArrowRight"));
  result.reached = reached.size === data.boxes.length;
  press("ArrowUp");
  result.above = data.edges.some((e) => e[0] === selected && e[1] === order[order.length - 1]);
  const shown = { id: "result", textContent: JSON.stringify(result) };
  document.body.append(Object.assign(document.createElement("pre"), shown));
});
</script>
"""
WATCH = "<script>window.failures = []; addEventListener('error', (e) => failures.push(e.message));</script>"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_page_in_a_browser(tmp_path: Path) -> None:
    page = (
        to_html(resnet()).replace("<head>", "<head>" + WATCH).replace("</body>", SCRIPT + "</body>")
    )
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    run = subprocess.run(
        [
            *(
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--window-size=1200,800",
            ),
            *(
                "--disable-background-networking",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--dump-dom",
                path.as_uri(),
            ),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    match = re.search(r'<pre id="result">(.*?)</pre>', run.stdout)
    assert match is not None, run.stdout[-500:] + run.stderr[-500:]
    result = json.loads(match.group(1))
    assert result["errors"] == []
    assert result["hits"] == 6  # four convolutions, the Add and the Relu behind it
    assert result["selected"].startswith("quant_conv3_block1")
    assert result["zoomed"]
    assert result["covered"] == 0  # pixels of the graph behind the legend
    assert result["reached"]  # by the arrow keys
    assert result["above"]
    assert result["colours"] > 10  # the canvas was painted
