"""What the run of the whole pipeline gets of a step."""

import json
from pathlib import Path

import pytest
from recording_tracker import RecordingTracker

from qatline.components.settings import QATSettings
from qatline.components.store.directories import describe
from qatline.components.tracking import tracked
from qatline.components.tracking.tracked import log_outputs, log_settings


def test_settings_are_on_the_pipelines_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked, "environment_tags", dict)
    tracker = RecordingTracker()
    log_settings(tracker, {"qat": QATSettings(epochs=3)}, seed=4, key="abc")
    (params,) = tracker.pipeline.of("params")
    assert (params["seed"], params["qat.epochs"]) == (4, 3)


def test_rows_have_one_spelling_on_both_runs(tmp_path: Path) -> None:
    row = {"accuracy": 0.5, "bytes": 3}
    (tmp_path / "evaluation.json").write_text(
        json.dumps({"version": 1, "results": {"qat_engine": row}})
    )
    metrics = {"qat_engine_accuracy": 0.5, "qat_engine_bytes": 3.0, "champion_gain": 0.25}
    tracker = RecordingTracker()
    log_outputs(tracker, "evaluate", tmp_path, describe(tmp_path, metrics=metrics))
    rows = {"qat_engine/accuracy": 0.5, "qat_engine/bytes": 3.0}
    assert tracker.of("metrics") == [{"champion_gain": 0.25, **rows}]
    assert tracker.pipeline.of("metrics") == [rows]


def test_verdict_and_report_are_on_the_pipelines_run(tmp_path: Path) -> None:
    reasons = [
        {"check": "accuracy_drop", "passed": True, "message": "No worse."},
        {"check": "speedup", "passed": False, "message": "Too slow."},
    ]
    verdict = {"model": "m", "verdict": "reject", "reasons": reasons}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    (tmp_path / "report.html").write_text("<p>")
    tracker = RecordingTracker()
    log_outputs(tracker, "promote", tmp_path, describe(tmp_path))
    assert tracker.pipeline.of("tags") == [
        {
            "qatline.verdict": "reject",
            "mlflow.note.content": "Verdict: reject. Too slow. Try `qatline bench-engine "
            "RUN/artifacts/engines/qat.engine --layers`. No worse.",
        }
    ]
    assert tracker.pipeline.of("artifact") == [("report.html", "")]


def test_curves_on_the_pipelines_run_name_the_step(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text('[{"epoch": 1, "loss": 0.5}]')
    tracker = RecordingTracker()
    log_outputs(tracker, "finetune_qat", tmp_path, describe(tmp_path))
    curve = [{"epoch": 1, "loss": 0.5}]
    assert tracker.of("history") == [(curve, "epoch")]
    assert tracker.pipeline.of("history") == [(curve, "finetune_qat")]
