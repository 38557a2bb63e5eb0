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
from qatline.components.artifacts.metric import Metric


def open_text(folder: Path, text: str) -> Measurements:
    (folder / "evaluation.json").write_text(text)
    return Evaluation(folder).measurements()


def test_measurements_give_rows_by_name(tmp_path: Path) -> None:
    row = {"accuracy": 0.5, "int8_layers": 3, "of_another_version": 1}
    found = open_text(tmp_path, json.dumps({"results": {"qat_engine": row, "fp32": 7}}))
    assert found.rows == {"qat_engine": ResultRow(accuracy=0.5, int8_layers=3)}
    assert found.row("fp32") == ResultRow()
    assert found.samples is found.infrastructure_check is None
    assert found.groups == found.worst_samples == ()


@pytest.mark.parametrize("text", ["[]", "3", '{"latency": {"fp32": [{}]}}', '{"groups": 1}'])
def test_measurements_of_another_shape_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(StepError, match=r"expected .*, received .* Run evaluate again"):
        open_text(tmp_path, text)


def test_measurements_are_written_as_they_were_read(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "version": 1,
            "samples": 2,
            "results": {"fp32": {"bytes": 3, "latency_ms_p50": None, "quality": {"mae": 0.5}}},
            "groups": [{"name": "a", "samples": 2, "values": {"fp32": None}}],
            "details": {"fp32": {"confusion": [[1, 0], [1, 0]]}},
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


def test_row_has_the_metrics_of_its_task() -> None:
    metric = Metric(name="mae", higher_is_better=False)
    row = ResultRow(bytes=3).with_quality({"mae": 0.5, "r2": 0.9}, metric).with_memory(None)
    assert row.value == 0.5
    metrics = row_metrics({"fp32": row})
    assert metrics == {"fp32/bytes": 3.0, "fp32/mae": 0.5, "fp32/r2": 0.9}
    assert rows_of_metrics(metrics, metric)["fp32"].value == 0.5
    assert ResultRow.model_validate(row.to_dict()) == row


def test_rows_of_earlier_versions_have_their_accuracy() -> None:
    row = ResultRow.model_validate({"accuracy": 0.5, "top5": None})
    assert (row.value, row.quality) == (0.5, {"accuracy": 0.5})
    assert ResultRow.model_validate({"accuracy": None}).value is None
