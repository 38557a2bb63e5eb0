"""The measurements of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qat_lib.errors import StepError
from qatline.components.artifacts.evaluation import (
    Evaluation,
    FileCheck,
    Measurements,
    ResultRow,
    row_metrics,
    rows_of_metrics,
)


def open_text(folder: Path, text: str) -> Measurements:
    (folder / "evaluation.json").write_text(text)
    return Evaluation(folder).measurements()


def test_measurements_give_rows_by_name(tmp_path: Path) -> None:
    row = {"accuracy": 0.5, "int8_layers": 3, "of_another_version": 1}
    found = open_text(tmp_path, json.dumps({"results": {"qat_engine": row, "fp32": 7}}))
    assert found.rows == {"qat_engine": ResultRow(accuracy=0.5, int8_layers=3)}
    assert found.row("fp32") == ResultRow()
    assert found.samples is found.infrastructure_check is None
    assert found.classes == found.worst_samples == ()


@pytest.mark.parametrize("text", ["[]", "3", '{"latency": {"fp32": [{}]}}', '{"per_class": 1}'])
def test_measurements_of_another_shape_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(StepError, match=r"expected .*, received .* Run evaluate again"):
        open_text(tmp_path, text)


def test_measurements_are_written_as_they_were_read(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "version": 1,
            "samples": 2,
            "classes": ["a", "b"],
            "results": {"fp32": {"bytes": 3, "latency_ms_p50": None, "accuracy": 0.5}},
            "confusion": {"fp32": [[1, 0], [1, 0]]},
            "per_class": [{"class": "a", "samples": 2, "accuracy": {"fp32": None}}],
            "latency": {"fp32": [{"batch_size": 1, "end_to_end": {"p50": 0.5}}]},
            "infrastructure_check": {"passed": True, "engines": {"fp32": {"passed": True}}},
        },
        indent=1,
    )
    Evaluation(tmp_path).write_measurements(open_text(tmp_path, text))
    assert (tmp_path / "evaluation.json").read_text() == text + "\n"


@pytest.mark.parametrize("passed", ["yes", 1, None, [True]])
def test_check_passes_only_if_it_says_so(passed: object) -> None:
    assert FileCheck.model_validate({"passed": passed}).passed is False
    assert FileCheck.model_validate({"passed": True}).passed is True


def test_row_metrics_are_named_by_row_and_figure() -> None:
    rows = {"fp32_engine": ResultRow(bytes=3, accuracy=None, backend="openvino")}
    assert row_metrics(rows, separator="_") == {"fp32_engine_bytes": 3.0}
    metrics = row_metrics(rows)
    assert rows_of_metrics({**metrics, "seconds": 1.0}) == {"fp32_engine": ResultRow(bytes=3.0)}


def test_row_with_few_classes_has_no_top5() -> None:
    row = ResultRow(bytes=3).with_quality(accuracy=0.5, top5=None).with_memory(None)
    assert row.to_dict() == {"bytes": 3, "accuracy": 0.5, "memory_mib": None}
    assert row.with_quality(accuracy=0.5, top5=1.0).top5 == 1.0
