"""The models that the steps hand on, with their figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qat_lib.core.plan import QuantizationPlan
from qat_lib.errors import DataError, StepError
from qatline.components.artifacts import Baseline, FineTuned, Quantized
from qatline.components.artifacts.models import Epoch, ModelInfo, QuantizerRange, measured_metrics

PLAN = QuantizationPlan(model="m", mode="full", quantizers=(), skipped=())


def test_test_accuracy_is_that_of_the_metrics(tmp_path: Path) -> None:
    baseline = Baseline(tmp_path)
    assert baseline.test_value("accuracy") is None
    baseline.write_metrics(
        {**measured_metrics("accuracy", test=0.5, validation=0.25), "parameters": 3.0}
    )
    assert baseline.test_value("accuracy") == 0.5
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "test_accuracy": 0.5,
        "validation_accuracy": 0.25,
        "parameters": 3.0,
    }


def test_old_history_has_no_kept_epoch(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text('[{"epoch": 1.0, "loss": 0.5}]')
    assert FineTuned(tmp_path).history() == [Epoch(epoch=1.0, loss=0.5)]
    (tmp_path / "history.json").write_text('{"epoch": 1.0}')
    with pytest.raises(StepError, match=r"expected a valid list, .* Run finetune_qat again"):
        FineTuned(tmp_path).history()


def test_info_is_written_as_given(tmp_path: Path) -> None:
    info = ModelInfo(name="m", input_shape=[8, 8, 1], trained_here=True)
    Baseline(tmp_path).write_info(info)
    assert Baseline(tmp_path).info() == info
    assert "probabilities" not in Baseline.INFO_TAGS


@pytest.mark.parametrize("values", [np.float64(3), np.full((2, 2), np.nan), np.arange(3)])
def test_predictions_must_be_finite_and_have_samples(tmp_path: Path, values: np.ndarray) -> None:
    np.save(tmp_path / "predictions.npy", values)
    with pytest.raises(DataError, match=r"must hold finite values of shape \(samples, \.\.\.\)"):
        Baseline(tmp_path).predictions()


def test_predictions_that_are_damaged_name_the_step(tmp_path: Path) -> None:
    (tmp_path / "predictions.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match=r"can't be read \(.*\)\. Run train_baseline again"):
        Baseline(tmp_path).predictions()
    Baseline(tmp_path).write_predictions([np.ones((2, 3))], 2)
    assert Baseline(tmp_path).predictions().dtype == np.float32


def test_predictions_are_written_in_batches_and_read_by_name(tmp_path: Path) -> None:
    boxes, scores = np.arange(20.0).reshape(5, 4), np.arange(5.0)
    batches = [{"boxes": boxes[s], "scores": scores[s]} for s in (slice(0, 3), slice(3, 5))]
    Baseline(tmp_path).write_predictions(batches, 5)
    found = Baseline(tmp_path).predictions()
    assert list(found) == ["boxes", "scores"]
    np.testing.assert_array_equal(found["boxes"], boxes)
    np.testing.assert_array_equal(found["scores"], scores)


def test_plan_is_none_for_a_model_in_fp32(tmp_path: Path) -> None:
    assert Baseline(tmp_path).plan() is None
    quantized, tuned = Quantized(tmp_path), FineTuned(tmp_path / "qat")
    tuned.path.mkdir()
    quantized.write_plan(PLAN)
    quantized.copy_plan(tuned)
    assert tuned.plan() == PLAN


def test_plan_that_is_damaged_names_the_step(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(StepError, match=r"plan\.json can't be read: .* Run quantize_model again"):
        Quantized(tmp_path).plan()


def test_ranges_come_back_as_written(tmp_path: Path) -> None:
    ranges = {
        "x": QuantizerRange(tensor="x:0", kind="activation", amax=2.0, histogram=None),
        "w": QuantizerRange(kind="weight", amax=[1.0, 3.0]),
    }
    Quantized(tmp_path).write_ranges(ranges)
    assert Quantized(tmp_path).ranges() == ranges
