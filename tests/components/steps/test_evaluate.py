"""The evaluate step on hand-made data with ONNX Runtime's predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from reference_networks import ResidualNetwork, write_network

from qat_lib.engines.manifest import seal
from qat_lib.engines.onnxruntime import reference_session
from qat_lib.engines.openvino import OpenVINOEngine
from qat_lib.errors import DataError, EngineLoadError
from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts.data_info import DatasetInfo, InputInfo
from qatline.components.artifacts.evaluation import FileCheck
from qatline.components.evaluation.infrastructure import check_in_fresh_process, summarize_check
from qatline.components.settings import EngineSettings
from qatline.components.steps import evaluate
from qatline.components.steps.build_engine import build_engine_step
from qatline.components.steps.evaluate import evaluate_step
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for

SAMPLES = 22
SETTINGS = EngineSettings.model_validate(
    {"batch_size": 4, "backend": "openvino", "benchmark_seconds": 0.02}
)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, pin_fp16: Any) -> dict[str, Path]:
    """Outputs of the earlier steps, as on a CPU without FP16."""
    root = tmp_path_factory.mktemp("steps")
    steps = {name: root / name for name in ("dataset", "baseline", "qat", "onnx", "engines")}
    for path in steps.values():
        path.mkdir()
    generator = np.random.default_rng(0)
    images = generator.integers(0, 17, (SAMPLES, 8, 8, 1)).astype(np.float32)
    preprocessing = Preprocessing(
        image_shape=(8, 8, 1), dtype="float32", scale=1 / 16, mean=(0.0,), std=(1.0,)
    )
    preprocessing.save(steps["dataset"] / "preprocessing.json")
    for variant, precision, seed in (("fp32", "fp32", 0), ("ptq", "int8", 0), ("qat", "int8", 0)):
        write_network(steps["onnx"] / f"{variant}.onnx", ResidualNetwork(seed=seed), precision)  # type: ignore[arg-type]
    session = reference_session(steps["onnx"] / "fp32.onnx")
    (logits,) = session.run(None, {"input": preprocessing.apply(images).transpose(0, 3, 1, 2)})
    labels = logits.argmax(axis=1)
    labels[:3] = (labels[:3] + 1) % 10  # FP32 is wrong on three samples
    np.save(steps["dataset"] / "test_x.npy", images)
    np.save(steps["dataset"] / "test_y.npy", labels.astype(np.int64))
    DatasetInfo(
        kind="npz",
        classes=tuple("0123456789"),
        inputs={"x": InputInfo(shape=(8, 8, 1), dtype="float32")},
        splits={"test": SAMPLES},
        fingerprint="",
        source="",
    ).save(steps["dataset"])
    np.save(steps["baseline"] / "predictions.npy", logits)
    (steps["baseline"] / "model.keras").write_bytes(b"0" * 1000)
    with pytest.MonkeyPatch.context() as patch:
        pin_fp16(False, patch)
        build_engine_step(
            steps["onnx"], steps["engines"], engine=SETTINGS, seed=0, progress=NullProgress()
        )
    return steps


@pytest.fixture(scope="module")
def evaluated(
    steps: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, float]]:
    out = tmp_path_factory.mktemp("evaluation")
    return out, evaluate_step(**steps, out=out, engine=SETTINGS, seed=0, progress=NullProgress())


def test_half_engine_that_fails_its_check_is_left_out(
    steps: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin_fp16: Any
) -> None:
    engines, out = tmp_path / "engines", tmp_path / "evaluation"
    engines.mkdir()
    out.mkdir()
    pin_fp16(True, monkeypatch)
    build_engine_step(steps["onnx"], engines, engine=SETTINGS, seed=0, progress=NullProgress())
    monkeypatch.setattr(
        "qatline.components.steps.evaluate.check_in_fresh_process",
        lambda engine, *_, **__: FileCheck(passed=engine.name != "fp16.engine", message="wrong"),
    )
    told: list[str] = []

    class Listener(NullProgress):
        def warn(self, message: str) -> None:
            told.append(message)

    evaluate_step(
        **{**steps, "engines": engines}, out=out, engine=SETTINGS, seed=0, progress=Listener()
    )
    report = json.loads((out / "evaluation.json").read_text())
    assert "fp16_engine" not in {*report["results"], *report["latency"], *report["details"]}
    assert report["infrastructure_check"]["passed"]
    assert told == ["FP16 engine, which is left out: wrong"]


def test_engine_that_answers_nan_is_refused(
    steps: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN would count as class 0."""
    run = OpenVINOEngine._run

    def broken(self: Any, request: Any, values: Any) -> dict[str, Any]:
        answers = run(self, request, values)
        if self.manifest.quantized:
            answers["logits"][-1] = np.nan  # one sample of each batch of 4
        return answers

    monkeypatch.setattr(OpenVINOEngine, "_run", broken)
    message = r"PTQ INT8 engine \(output logits\)\. Its outputs are NaN for 1 of 4 samples"
    with pytest.raises(DataError, match=message):
        evaluate_step(**steps, out=tmp_path, engine=SETTINGS, seed=0, progress=NullProgress())
    assert not (tmp_path / "evaluation.json").exists()


@pytest.mark.matrix
def test_fp16_engine_has_row_and_passes_check(
    steps: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin_fp16: Any
) -> None:
    pin_fp16(True, monkeypatch)
    engines, out = tmp_path / "engines", tmp_path / "evaluation"
    engines.mkdir()
    out.mkdir()
    build_engine_step(steps["onnx"], engines, engine=SETTINGS, seed=0, progress=NullProgress())
    evaluate_step(
        **{**steps, "engines": engines}, out=out, engine=SETTINGS, seed=0, progress=NullProgress()
    )
    report = json.loads((out / "evaluation.json").read_text())
    row = report["results"]["fp16_engine"]
    assert row["quality"]["accuracy"] == pytest.approx(
        report["results"]["fp32"]["quality"]["accuracy"], abs=1 / 22
    )
    assert row["bytes"] == (engines / "fp16.engine").stat().st_size
    assert 0 < row["latency_ms_p50"] <= row["latency_ms_p99"]
    assert row["throughput"] > 0
    assert report["infrastructure_check"]["engines"]["fp16_engine"]["bound"] == 0.15
    assert report["infrastructure_check"]["passed"]


@pytest.fixture(scope="module")
def report(evaluated: tuple[Path, dict[str, float]]) -> dict[str, Any]:
    return dict(json.loads((evaluated[0] / "evaluation.json").read_text()))


@pytest.mark.matrix
def test_fp32_rows_have_the_accuracy_of_the_predictions(report: dict[str, Any]) -> None:
    results = report["results"]
    assert list(results) == ["fp32", "fp32_engine", "ptq_engine", "qat_engine"]
    accuracy, engine = (results[row]["quality"]["accuracy"] for row in ("fp32", "fp32_engine"))
    assert accuracy == engine == pytest.approx(19 / 22)
    assert results["fp32"]["bytes"] == 1000
    assert results["fp32"]["latency_ms_p50"] is None
    assert results["fp32"]["int8_layers"] == 0
    assert report["agreement"]["fp32_engine"]["same"] == 1.0
    assert report["agreement"]["fp32_engine"]["largest_difference"] < 1e-5


@pytest.mark.matrix
def test_control_is_a_row_beside_fp32(steps: dict[str, Path], tmp_path: Path) -> None:
    qat, out = tmp_path / "qat", tmp_path / "evaluation"
    (qat / "control").mkdir(parents=True)
    out.mkdir()
    predictions = np.load(steps["baseline"] / "predictions.npy")
    np.save(qat / "control" / "predictions.npy", -predictions)
    (qat / "control" / "model.keras").write_bytes(b"0" * 700)
    given = {"engine": SETTINGS, "seed": 0, "progress": NullProgress()}
    metrics = evaluate_step(**{**steps, "qat": qat}, out=out, **given)  # type: ignore[arg-type]
    report = json.loads((out / "evaluation.json").read_text())
    names = ["fp32", "fp32_control", "fp32_engine", "ptq_engine", "qat_engine"]
    assert list(report["results"]) == names
    row = report["results"]["fp32_control"]
    assert row["quality"]["accuracy"] == metrics["fp32_control_accuracy"] < 0.5
    assert (row["bytes"], row["backend"], row["int8_layers"]) == (700, "keras", 0)
    assert report["agreement"]["fp32_control"]["same"] == 0.0


def test_engine_rows_are_complete(report: dict[str, Any], steps: dict[str, Path]) -> None:
    row = report["results"]["qat_engine"]
    assert (row["int8_layers"], row["weighted_layers"]) == (7, 7)
    assert row["bytes"] == (steps["engines"] / "qat.engine").stat().st_size
    assert 0 < row["latency_ms_p50"] <= row["latency_ms_p99"]
    assert row["batch_size"] == 4
    assert row["throughput"] > 0
    assert row["memory_mib"] > 0
    assert row["quality"]["accuracy"] <= row["quality"]["top5"] <= 1
    assert [run["batch_size"] for run in report["latency"]["qat_engine"]] == [1, 4]


def test_confusion_and_classes_add_up(report: dict[str, Any]) -> None:
    for details in report["details"].values():
        matrix = details["confusion"]
        assert np.array(matrix).sum() == SAMPLES
    assert sum(entry["samples"] for entry in report["groups"]) == SAMPLES


def test_worst_samples_are_pictures_in_order(
    report: dict[str, Any], evaluated: tuple[Path, dict[str, float]]
) -> None:
    worst = report["worst_samples"]
    assert len(worst) == 8
    assert [entry["difference"] for entry in worst] == sorted(
        (entry["difference"] for entry in worst), reverse=True
    )
    assert worst[0]["difference"] == pytest.approx(
        report["agreement"]["qat_engine"]["largest_difference"], rel=1e-4
    )
    with Image.open(evaluated[0] / worst[0]["file"]) as picture:
        assert picture.size == (96, 96)


def test_engines_pass_check_in_fresh_process(report: dict[str, Any]) -> None:
    check = report["infrastructure_check"]
    assert check["passed"]
    assert set(check["engines"]) == {"fp32_engine", "ptq_engine", "qat_engine"}
    assert check["largest_difference"] <= check["bound"] == 0.02
    assert check["engines"]["fp32_engine"]["bound"] == 0.001
    assert "answered 32 random requests and 22 real inputs" in check["message"]
    assert check["samples"] == SAMPLES


def test_metrics_are_flat_numbers(evaluated: tuple[Path, dict[str, float]]) -> None:
    metrics = evaluated[1]
    assert metrics["qat_engine_int8_layers"] == 7
    assert all(isinstance(value, float) for value in metrics.values())
    assert "fp32_latency_ms_p50" not in metrics


def test_predictions_of_another_data_set_stop_the_step(
    steps: dict[str, Path], tmp_path: Path
) -> None:
    for count in (SAMPLES - 1, SAMPLES + 1):
        np.save(tmp_path / "predictions.npy", np.zeros((count, 10), np.float32))
        with pytest.raises(DataError, match="the test part does not have as many"):
            evaluate_step(
                **{**steps, "baseline": tmp_path},
                out=tmp_path,
                engine=SETTINGS,
                seed=0,
                progress=NullProgress(),
            )
    assert not (tmp_path / "evaluation.json").exists()


def test_a_missing_engine_stops_the_step(steps: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"holds no fp32\.engine, ptq\.engine, qat\.engine"):
        evaluate_step(
            **{**steps, "engines": tmp_path},
            out=tmp_path,
            engine=SETTINGS,
            seed=0,
            progress=NullProgress(),
        )


def test_an_engine_that_preprocesses_itself_is_refused(
    steps: dict[str, Path], tmp_path: Path
) -> None:
    engines = shutil.copytree(steps["engines"], tmp_path / "engines")
    manifest = json.loads((engines / "ptq.engine.json").read_text())
    (engines / "ptq.engine.json").write_text(seal({**manifest, "preprocessing_embedded": True}))
    with pytest.raises(DataError, match="Export the model without embed_preprocessing"):
        evaluate_step(
            **{**steps, "engines": engines},
            out=tmp_path,
            engine=SETTINGS,
            seed=0,
            progress=NullProgress(),
        )


def test_an_engine_of_another_model_fails_its_check(steps: dict[str, Path], tmp_path: Path) -> None:
    other = write_network(tmp_path / "other.onnx", ResidualNetwork(seed=5), "int8")
    result = check_in_fresh_process(steps["engines"] / "qat.engine", other, seed=0)
    assert result.passed is False
    assert "Expected the ONNX file that qat.engine was built from" in result.message


def test_damaged_engine_fails_check_with_reason(steps: dict[str, Path], tmp_path: Path) -> None:
    for name in ("qat.engine", "qat.engine.json"):
        shutil.copy(steps["engines"] / name, tmp_path / name)
    (tmp_path / "qat.engine").write_bytes(b"0" * (tmp_path / "qat.engine").stat().st_size)
    result = check_in_fresh_process(tmp_path / "qat.engine", steps["onnx"] / "qat.onnx", seed=0)
    assert result.passed is False
    assert "the file is damaged" in result.message


def test_one_failed_engine_fails_the_whole_check() -> None:
    good, bad = FileCheck(passed=True, message="fine"), FileCheck(passed=False, message="broken")
    summary = summarize_check({"fp32_engine": bad, "qat_engine": good}, "qat_engine")
    assert summary.passed is False
    assert summary.message == "broken"
    assert summary.engines == {"fp32_engine": bad, "qat_engine": good}
    summary = summarize_check({"fp32_engine": good, "qat_engine": good}, "qat_engine")
    assert summary.message == "fine"


def test_chance_has_targets_of_other_samples_in_batches_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine with a fixed batch of one is compared with chance like any other."""
    targets = np.arange(30, dtype=np.float32)[:, None]
    batches = [(targets[i : i + 1], targets[i : i + 1]) for i in range(30)]
    monkeypatch.setattr(evaluate, "numpy_batches", lambda *_: batches)
    task = task_for("regression", target_shape=(1,))

    class Engine:
        """An engine that returns its input."""

        largest_batch, output = 1, "y"

        def __call__(self, batch: np.ndarray) -> np.ndarray:
            return batch

    quality, _ = evaluate._measure(
        Path("data"), task, {"qat_engine": Engine()}, {"fp32": targets}, NullProgress()
    )
    found = quality["qat_engine"]
    chance = task.compare_with_chance(found.samples, found.shuffled)
    assert (chance.value, chance.p_value) == (0.0, 1 / 2000)
