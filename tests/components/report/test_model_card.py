"""The model card of a run."""

from __future__ import annotations

import json
from pathlib import Path

from sample_run import write_sample_run

from qatline.components.artifacts.variants import CANDIDATE
from qatline.components.report.model_card import model_card
from qatline.components.report.sources import read_run


def test_card_has_data_quality_limits_quantization_and_speed(tmp_path: Path) -> None:
    run = read_run(write_sample_run(tmp_path))
    card = model_card(run, "CC-BY-4.0")
    headings = [line[3:] for line in card.splitlines() if line.startswith("## ")]
    assert headings == ["Data", "Quality", "Limits", "Licence", "Quantization", "Speed and size"]
    assert run.dataset is not None
    assert f"`{run.dataset.fingerprint}`" in card
    assert "## Licence\n\nCC-BY-4.0\n" in card
    row = run.measurements.row(CANDIDATE)
    assert row.value is not None
    assert f"{row.value:.2%}" in card
    for group in run.measurements.groups:
        assert f"| {group.name} | {group.samples:,.0f} |" in card
    assert f"{row.int8_layers:.0f} of {row.weighted_layers:.0f}" in card


def test_card_tables_are_whole_whatever_the_names(tmp_path: Path) -> None:
    names = ["a|b", "<script>", "c\nd", *map(str, range(7))]
    card = model_card(read_run(write_sample_run(tmp_path, classes=names)))
    assert "| a\\|b |" in card
    for table in card.split("\n\n"):
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1, table


def test_card_of_a_run_without_measurements(tmp_path: Path) -> None:
    folders = write_sample_run(tmp_path)
    (folders.evaluation / "evaluation.json").write_text(json.dumps({"version": 1}))
    card = model_card(read_run(folders))
    assert "Not stated" in card
    assert "FP32: –" in card or "FP32: -" in card or "FP32: —" in card
