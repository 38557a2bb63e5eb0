"""Figures against cases small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.evaluation import metrics

LABELS = np.array([0, 1, 1, 2])
OUTPUTS = np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 5.0, 1.0], [0.0, 1.0, 0.5]])


def test_accuracy_counts_the_largest_output() -> None:
    assert metrics.accuracy(OUTPUTS, LABELS) == 0.5
    assert metrics.top_k_accuracy(OUTPUTS, LABELS, 2) == 1.0


def test_confusion_has_labels_as_rows() -> None:
    assert metrics.confusion(OUTPUTS, LABELS, 3).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 0]]


def test_per_class_change_is_against_the_reference() -> None:
    better = np.eye(3)[LABELS]
    confusions = {
        "fp32": metrics.confusion(OUTPUTS, LABELS, 4),
        "engine": metrics.confusion(np.pad(better, ((0, 0), (0, 1))), LABELS, 4),
    }
    table = metrics.per_class(confusions, ["a", "b", "c", "none"], "fp32")
    assert table[1].to_dict() == {
        "class": "b",
        "samples": 2,
        "accuracy": {"fp32": 0.5, "engine": 1.0},
        "change": {"fp32": 0.0, "engine": 0.5},
    }
    assert table[3].accuracy == {"fp32": None, "engine": None}


def test_probabilities_pass_through_and_logits_become_them() -> None:
    chances = np.array([[0.25, 0.75], [1.0, 0.0]])
    np.testing.assert_array_equal(metrics.probabilities(chances), chances)
    np.testing.assert_allclose(metrics.probabilities(np.array([[1000.0, 1000.0]])), [[0.5, 0.5]])


def test_calibration_error_of_known_confidences() -> None:
    # Two samples at confidence 0.9, one right: |0.5 - 0.9|. Two at 0.6, both right: |1 - 0.6|.
    chances = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    assert metrics.calibration_error(chances, np.array([0, 1, 0, 0])) == pytest.approx(0.4)
    assert metrics.calibration_error(np.eye(3), np.array([0, 1, 2])) == pytest.approx(0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_check_outputs_counts_samples_with_nan(dtype: type) -> None:
    outputs = OUTPUTS.astype(dtype)
    metrics.check_outputs(outputs, "the engine")
    metrics.check_outputs(np.where(outputs > 0, -np.inf, outputs), "the engine")  # masked classes
    outputs[1], outputs[2, 0] = np.nan, np.nan
    with pytest.raises(DataError, match=r"the engine\. Its outputs are NaN for 2 of 4 samples"):
        metrics.check_outputs(outputs, "the engine")


def test_agreement_with_itself_is_complete() -> None:
    assert metrics.agreement(OUTPUTS, OUTPUTS).to_dict() == {
        "labels": 1.0,
        "largest_difference": 0.0,
        "mean_difference": 0.0,
    }
    assert metrics.agreement(OUTPUTS, -OUTPUTS).labels == 0.0
