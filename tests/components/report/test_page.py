"""The page: complete, self-contained, well-formed, robust.

It is deaf to hostile names and never fails.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_run import REASON, VERDICT, write_sample_run

from qatline.components.artifacts import Verdict
from qatline.components.report import ReportFolders, render_report
from qatline.components.settings import GateSettings

VOID = {"meta", "link", "input", "img", "br", "hr"}
GATE = GateSettings.model_validate({})


class Checker(HTMLParser):
    """Collects tags, ids, links and what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.wrong: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [
            values[name] or "" for name in ("href", "src", "action", "data") if name in values
        ]
        self.handlers += [name for name in values if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def render(folders: ReportFolders) -> str:
    return render_report(folders, verdict=VERDICT, gate=GATE, seed=3)


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.wrong == []
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    return checker


def test_page_is_well_formed_with_valid_links(folders: ReportFolders) -> None:
    checker = check(render(folders))
    inside = [link.removeprefix("#") for link in checker.links if link.startswith("#")]
    assert set(inside) <= set(checker.ids)
    assert len(inside) > 5


def test_page_needs_nothing_from_outside(folders: ReportFolders) -> None:
    page = render(folders)
    checker = check(page)
    assert all(link.startswith(("#", "data:")) for link in checker.links)
    assert not re.search(r"@import|url\((?!['\"]?data:)|https?://|fetch\(|XMLHttpRequest", page)
    assert not {"iframe", "object", "embed", "base", "form"} & set(checker.tags)


def test_every_section_shows_its_data(folders: ReportFolders) -> None:
    page = render(folders)
    for expected in (
        "97.78%",  # accuracy
        "+0.28 pp",
        "11 of 11",
        "FP32 baseline",
        "block1_project",  # graph
        "Q/DQ ±3.10",
        "block2_conv1_kernel",  # ranges and plan
        "input of a convolution",
        "no INT8 softmax",
        "36 of 37 × 0 read as 0",  # confusion
        "data:image/png;base64,",
        "one reformat at the input",
        "12.5%",  # share of a layer
        "0f0f0f",  # fingerprint
        "learning_rate",  # settings of a step's manifest
    ):
        assert expected in page, expected
    assert 'class="missing"' not in page


def test_a_rejected_engine_is_said_first(folders: ReportFolders) -> None:
    changes = {"check": "int8_fraction", "passed": False, "message": "0 of 11 run in INT8."}
    failed = REASON.model_copy(update=changes)
    verdict = Verdict(verdict="reject", reasons=(REASON, failed))
    page = render_report(folders, verdict=verdict, gate=GATE, seed=0)
    assert "failed 1 of 2 checks" in page
    assert page.index("0 of 11 run in INT8.") < page.index("is no worse than FP32 Keras")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = "</style></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    folders = write_sample_run(tmp_path, classes=[evil, *"123456789"])
    for path in (
        folders.baseline / "model.json",
        folders.onnx / "plan.json",
        folders.ptq / "ranges.json",
    ):
        text = (
            path.read_text()
            .replace("resnet_digits", json.dumps(evil)[1:-1])
            .replace("stem", json.dumps(evil)[1:-1])
        )
        path.write_text(text)
    page = render(folders)
    checker = check(page)
    assert checker.tags.count("script") == 1
    assert checker.handlers == []
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_page_masks_secret_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASS", "planted<1>")
    page = render(write_sample_run(tmp_path, classes=["has planted<1>", *"123456789"]))
    assert "has ***" in page
    assert "planted" not in page


@pytest.mark.parametrize("name", [field.name for field in fields(ReportFolders)])
def test_any_directory_may_be_missing(folders: ReportFolders, name: str) -> None:
    shutil.rmtree(getattr(folders, name))
    check(render(folders))


def test_nothing_at_all_still_gives_a_page(tmp_path: Path) -> None:
    empty = ReportFolders(**{field.name: tmp_path / field.name for field in fields(ReportFolders)})
    page = render(empty)
    check(page)
    for sentence in (
        "No engine was evaluated",
        "No training history",
        "No exported graph",
        "No ranges",
        "No plan",
    ):
        assert sentence in page


JSON_FILES = [
    ("dataset", "dataset.json"),
    ("baseline", "model.json"),
    ("baseline", "history.json"),
    ("ptq", "ranges.json"),
    ("onnx", "plan.json"),
    ("onnx", "export.json"),
    ("onnx", "analysis.json"),
    ("evaluation", "evaluation.json"),
    ("engines", "qat.layers.json"),
    ("qat", "manifest.json"),
]
BROKEN = [
    "{",
    "null",
    "7",
    "[1, null]",
    '{"a": [1], "results": [], "quantizers": {"x": 1}, "layers": 3}',
]


@pytest.mark.parametrize(("folder", "name"), JSON_FILES)
def test_no_content_of_a_file_fails_the_report(
    folders: ReportFolders, folder: str, name: str
) -> None:
    for content in BROKEN:
        (getattr(folders, folder) / name).write_text(content)
        check(render(folders))


def test_unreadable_file_is_named(folders: ReportFolders) -> None:
    (folders.onnx / "plan.json").write_text("{")
    assert "onnx/plan.json can&#39;t be read" in render(folders)


def test_wrong_types_inside_a_file_cost_one_section(folders: ReportFolders) -> None:
    ranges = json.loads((folders.ptq / "ranges.json").read_text())
    ranges["stem_input"]["histogram"] = {"counts": ["a", None], "edges": [0, 1, 2]}
    (folders.ptq / "ranges.json").write_text(json.dumps(ranges))
    page = render(folders)
    check(page)
    assert "the ranges can&#39;t be shown" in page
    assert "97.78%" in page


def test_damaged_onnx_file_costs_the_picture_only(folders: ReportFolders) -> None:
    (folders.onnx / "qat.onnx").write_bytes(b"\x00not onnx")
    page = render(folders)
    assert "No exported graph to draw" in page
    assert "97.78%" in page


def test_pictures_from_elsewhere_are_left_out(folders: ReportFolders, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    text = (folders.evaluation / "evaluation.json").read_text()
    for name in ("../secret.png", str(secret)):
        broken = text.replace("worst_samples/qat_engine_0.png", name)
        (folders.evaluation / "evaluation.json").write_text(broken)
        assert render(folders).count("data:image/png") == 2


def test_picture_that_is_no_png_is_left_out(folders: ReportFolders) -> None:
    (folders.evaluation / "worst_samples" / "qat_engine_0.png").write_text("<svg onload=alert(1)>")
    page = render(folders)
    assert page.count("data:image/png") == 2
    assert "onload" not in page


def test_page_shows_what_layers_cost_where_it_was_measured(tmp_path: Path) -> None:
    folders = write_sample_run(tmp_path)
    page = render_report(folders, verdict=VERDICT, gate=GATE, seed=0)
    assert "Weights in INT8" not in page
    layer = {"layer": "<conv>", "weights": 0.25, "inputs": None, "cause": "outlier channel of x"}
    costs = {"measure": "kl", "total": 0.5, "samples": 16, "layers": [layer]}
    (folders.ptq / "layer_costs.json").write_text(json.dumps(costs))
    page = render_report(folders, verdict=VERDICT, gate=GATE, seed=0)
    assert "Weights in INT8" in page
    assert "&lt;conv&gt;" in page
    assert "outlier channel of x" in page
    assert "The whole quantization: 0.500 on 16 samples" in page
    (folders.ptq / "layer_costs.json").write_text("[]")
    page = render_report(folders, verdict=VERDICT, gate=GATE, seed=0)
    assert "can&#39;t be shown" in page or "can't be shown" in page


def test_graph_shows_the_precision_of_the_built_engine(folders: ReportFolders) -> None:
    page = render(folders)
    assert page.count("in the built engine: int8") == 1
    layers = folders.engines / "qat.layers.json"
    layers.write_text(layers.read_text().replace("quant_stem/Conv", "quant_stem/Relu"))
    assert "in the built engine: int8" in render(folders)  # any node of the kernel
