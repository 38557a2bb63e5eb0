"""Entries of a step for its own run and for that of the pipeline."""

import json
import subprocess
from pathlib import Path

import pytest
from recording_run import INFO, RecordingRun

from qat_lib.errors import StepError
from qatline.components.settings import DataSettings, QATSettings
from qatline.components.store.directories import describe
from qatline.components.tracking import tracked
from qatline.components.tracking.mlflow_run import (
    Artifact,
    Curves,
    DatasetInput,
    Metrics,
    OnnxModel,
    Params,
    Tags,
)
from qatline.components.tracking.tracked import flatten, log_outputs, log_settings
from qatline.components.tracking.tracker import StepTracker


def outputs_of(
    step: str, folder: Path, metrics: dict[str, float] | None = None
) -> tuple[RecordingRun, RecordingRun]:
    """Record a finished folder; return the step's run and the pipeline's."""
    own, pipeline = RecordingRun(), RecordingRun()
    log_outputs(StepTracker(own, pipeline), step, folder, describe(folder, metrics=metrics or {}))
    return own, pipeline


def test_rows_have_one_spelling_on_both_runs(tmp_path: Path) -> None:
    row = {"accuracy": 0.5, "bytes": 3}
    (tmp_path / "evaluation.json").write_text(
        json.dumps({"version": 1, "results": {"qat_engine": row}})
    )
    metrics = {"qat_engine_accuracy": 0.5, "qat_engine_bytes": 3.0, "champion_gain": 0.25}
    own, pipeline = outputs_of("evaluate", tmp_path, metrics)
    rows = {"qat_engine/accuracy": 0.5, "qat_engine/bytes": 3.0}
    assert own.of(Metrics) == [Metrics({"champion_gain": 0.25, **rows})]
    assert pipeline.of(Metrics) == [Metrics(rows)]


def test_verdict_and_report_are_on_the_pipelines_run(tmp_path: Path) -> None:
    reasons = [
        {"check": "quality_drop", "passed": True, "message": "No worse."},
        {"check": "speedup", "passed": False, "message": "Too slow."},
    ]
    verdict = {"model": "m", "verdict": "reject", "reasons": reasons}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    (tmp_path / "report.html").write_text("<p>")
    (tmp_path / "champion.onnx").write_bytes(b"o")
    own, pipeline = outputs_of("promote", tmp_path)
    description = (
        "Verdict: reject. Too slow. Try `qatline bench-engine RUN/artifacts/engines/qat.engine "
        "--layers`. No worse."
    )
    tags = {"qatline.verdict": "reject", "mlflow.note.content": description}
    assert pipeline.entries == [Tags(tags), Artifact(tmp_path / "report.html")]
    # The registry is the promotion's.
    assert own.of(Artifact) == [Artifact(tmp_path / n) for n in ("verdict.json", "report.html")]
    assert own.of(OnnxModel) == []


def test_settings_are_flat_params_with_their_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked, "environment_tags", lambda: {"version.numpy": "2"})
    own, pipeline = RecordingRun(), RecordingRun()
    sections = {"qat": QATSettings(epochs=3), "data": DataSettings(classes=["a", "b"])}
    log_settings(StepTracker(own, pipeline), sections, seed=4, key="abc")
    for run, seed in ((own, "run.seed"), (pipeline, "seed")):
        (params,) = run.of(Params)
        assert params.values[seed] == 4
        assert params.values["qat.epochs"] == 3
        assert params.values["data.classes"] == '["a","b"]'
        assert params.values["data.preprocessing.mean"] == "[0.0]"
    assert own.of(Tags) == [Tags({"qatline.key": "abc", "version.numpy": "2"})]


def test_what_is_recorded_is_declared(tmp_path: Path) -> None:
    (tmp_path / "qat.onnx").write_bytes(b"o")
    (tmp_path / "fp32.onnx").write_bytes(b"o")
    for name in ("plan.json", "export.json", "other.json"):
        (tmp_path / name).write_text("{}")
    own, pipeline = outputs_of("export_onnx", tmp_path, {"bytes": 3.0})
    assert own.entries == [
        Metrics({"bytes": 3.0}),
        Tags({"qatline.output_digest": describe(tmp_path).digest}),
        Artifact(tmp_path / "plan.json"),
        Artifact(tmp_path / "export.json"),
        OnnxModel(tmp_path / "qat.onnx"),
    ]
    assert pipeline.entries == []


def test_engines_carry_their_target_as_tags(tmp_path: Path) -> None:
    (tmp_path / "qat.engine").write_bytes(b"e")
    target = {
        "backend": "openvino",
        "device": {"name": "cpu", "flags": ["avx2"], "compute": None},
        "quantized": True,
        "nodes": {f"n{index}": "x" for index in range(500)},
    }
    (tmp_path / "qat.engine.json").write_text(json.dumps(target))
    own, _ = outputs_of("build_engine", tmp_path)
    assert own.of(Tags)[1].values == {
        "qat.engine.backend": "openvino",
        "qat.engine.device.name": "cpu",
        "qat.engine.device.flags": '["avx2"]',
        "qat.engine.quantized": "True",
    }
    files = [tmp_path / name for name in ("qat.engine", "qat.engine.json")]
    assert own.of(Artifact) == [Artifact(path) for path in files]


def test_curves_and_data_set_are_on_both_runs(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text('[{"epoch": 1, "loss": 0.5}]')
    INFO.save(tmp_path)
    own, pipeline = outputs_of("finetune_qat", tmp_path)
    curve = [{"epoch": 1, "loss": 0.5}]
    assert own.of(Curves) == [Curves(curve, "epoch")]
    assert pipeline.entries == [Curves(curve, "finetune_qat")]
    own, pipeline = outputs_of("prepare_data", tmp_path)
    assert own.of(DatasetInput) == pipeline.entries == [DatasetInput(INFO)]


def test_pictures_keep_their_folder(tmp_path: Path) -> None:
    picture = tmp_path / "worst_samples" / "1.png"
    picture.parent.mkdir()
    picture.write_bytes(b"p")
    own, _ = outputs_of("evaluate", tmp_path)
    assert own.of(Artifact) == [Artifact(picture, "worst_samples")]


def test_a_file_that_is_no_json_is_told(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text("[")
    with pytest.raises(StepError, match=r"history\.json is no JSON"):
        outputs_of("finetune_qat", tmp_path)


def test_flatten_cuts_texts_beyond_500_characters() -> None:
    assert flatten("x" * 500, "spec") == {"spec": "x" * 500}
    assert flatten("x" * 501, "spec") == {"spec": "x" * 497 + "..."}
    assert flatten({"a": {"b": [1, {"c": None}]}, "d": 5}, "s") == {
        "s.a.b": '[1,{"c":null}]',
        "s.d": 5,
    }


def test_environment_tags_name_commit_and_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert "git.commit" not in tracked.environment_tags()
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init"], [*author, "commit", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *command], check=True, capture_output=True)
    tags = tracked.environment_tags()
    assert (len(tags["git.commit"]), tags["git.dirty"]) == (40, "false")
    assert tags["host.system"]
    assert tags["version.numpy"]
    (tmp_path / "new").write_text("")
    assert tracked.environment_tags()["git.dirty"] == "true"
    monkeypatch.setenv("PATH", "")
    assert "git.commit" not in tracked.environment_tags()


def test_log_outputs_takes_tags_of_objects_only(tmp_path: Path) -> None:
    (tmp_path / "qat.engine.json").write_text('["backend"]')
    own, _ = outputs_of("build_engine", tmp_path)
    assert own.of(Tags)[1:] == [Tags({})]
