"""The exported graphs and what was checked of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qat_lib.errors import StepError
from qatline.components.artifacts import Exported
from qatline.components.artifacts.exported import (
    Analysis,
    ExportRecord,
    FindingRecord,
    ParityRecord,
)
from qatline.components.artifacts.variants import Variant


def test_half_reference_without_graph_is_fp32(tmp_path: Path) -> None:
    exported = Exported(tmp_path)
    assert exported.reference(Variant.BF16).name == "fp32.onnx"
    assert exported.reference(Variant.FP16).name == "fp32.onnx"
    assert exported.reference(Variant.QAT).name == "qat.onnx"
    exported.graph(Variant.FP16).write_bytes(b"")
    assert exported.reference(Variant.FP16).name == "fp16.onnx"


def test_summary_comes_back_as_written(tmp_path: Path) -> None:
    finding = FindingRecord(code="V20", severity="warning", node="n", message="m")
    record = ExportRecord(bytes=3, verification=[finding], parity=ParityRecord(samples=2))
    Exported(tmp_path).write_summary({"qat": record})
    assert Exported(tmp_path).summary() == {"qat": record}


@pytest.mark.parametrize("text", ["[]", '{"qat": 3}', '{"qat": {"verification": [3]}}'])
def test_summary_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "export.json").write_text(text)
    with pytest.raises(StepError, match="Run export_onnx again"):
        Exported(tmp_path).summary()


def test_analysis_without_findings_was_not_run(tmp_path: Path) -> None:
    (tmp_path / "analysis.json").write_text("{}")
    assert Exported(tmp_path).analysis() == Analysis(findings=None)


@pytest.mark.parametrize(
    ("severity", "is_error"), [("error", True), (None, True), ("warning", False), ("info", False)]
)
def test_finding_without_a_severity_is_an_error(severity: str | None, is_error: bool) -> None:
    assert FindingRecord.model_validate({"severity": severity}).is_error is is_error
    assert FindingRecord().is_error


def test_numbers_leave_out_what_was_not_measured() -> None:
    assert ExportRecord(bytes=3).numbers() == {"bytes": 3}
    record = ExportRecord(bytes=3, seconds=0.5, quantizers=2, parity=ParityRecord())
    assert record.numbers() == {"bytes": 3, "seconds": 0.5, "quantizers": 2}
