"""The page: self-contained, safe with any name, usable by keyboard and on a phone."""

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


def test_page_shows_the_predicted_engine() -> None:
    page = to_html(resnet())
    assert "conv1_conv: Conv 7×7 /2 + Relu + MaxPool 3×3 /2" in page
    assert page.count('class="node') == 57 + 2  # kernels, input and output
    assert "Q/DQ pair: image_quantizer/QuantizeLinear" in page
    assert page.count('class="flag"') == 17  # Adds in floating point, and the input's Q
    assert page.count('<tr><th scope="row">') == 33 + 54  # findings and layers


def test_page_needs_nothing_else() -> None:
    page = to_html(resnet())
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|\bsrc=|@import|url\(", page)


def test_names_stay_text() -> None:
    name = "</script><script>alert(1)</script><!--"
    g = GraphBuilder()
    g.output(g.op("Relu", [g.input()], name))
    page = to_html(analyze_graph(g.graph(), model=name))
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)" in page


def test_empty_graph() -> None:
    g = GraphBuilder()
    g.output(g.input())
    assert to_html(analyze_graph(g.graph())).count('class="node') == 2


SCRIPT = """
<script>
addEventListener("load", () => setTimeout(() => {
  const byId = (id) => document.getElementById(id), result = { errors: window.failures };
  const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const nodes = [...document.querySelectorAll(".node")], reached = new Set();
  nodes[0].focus();
  for (const _ of nodes) { reached.add(document.activeElement.id); press("ArrowDown"); }
  result.reached = reached.size === nodes.length;
  result.stops = nodes.filter((node) => node.tabIndex === 0).length;
  result.detail = byId("graph-detail").textContent;
  const graph = document.querySelector("svg.graph"), before = graph.getBoundingClientRect().width;
  document.querySelector("[data-zoom=in]").click();
  result.zoomed = graph.getBoundingClientRect().width > before;
  byId("find").value = "conv3_block1";
  byId("find").dispatchEvent(new Event("input"));
  result.hits = nodes.filter((node) => !node.classList.contains("dim")).length;
  const box = (node) => node.getBoundingClientRect(), view = box(byId("graph-view"));
  const hit = box(nodes.find((node) => !node.classList.contains("dim")));
  result.shown = hit.top >= view.top && hit.bottom <= view.bottom;
  result.covered = box(document.querySelector(".legend")).bottom > view.top;
  result.wide = document.documentElement.scrollWidth > innerWidth;
  const shown = { id: "result", textContent: JSON.stringify(result) };
  document.body.append(Object.assign(document.createElement("pre"), shown));
}, 50));
</script>
"""
WATCH = "<script>window.failures = []; addEventListener('error', (e) => failures.push(e.message));</script>"


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.parametrize("size", ["1200,800", "500,800"])
def test_page_in_a_browser(tmp_path: Path, size: str) -> None:
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
                f"--window-size={size}",
            ),
            *(
                "--disable-background-networking",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--virtual-time-budget=2000",
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
    assert result.pop("detail") == "predictions/Softmax:0_764: Output\nshape: batch × 1000"
    # Hits are the four convolutions; the Add and the Relus are in their kernels.
    assert result == {
        "errors": [],
        "reached": True,
        "stops": 1,
        "zoomed": True,
        "hits": 4,
        "shown": True,
        "covered": False,
        "wide": False,
    }
