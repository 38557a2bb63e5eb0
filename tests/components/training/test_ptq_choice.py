"""When fine-tuning may be skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from qatline.components.artifacts import Baseline, Quantized
from qatline.components.artifacts.metric import ACCURACY
from qatline.components.settings import GateSettings
from qatline.components.training.ptq_choice import ptq_suffices


@pytest.mark.parametrize(
    ("before", "after", "skips"),
    [(0.95, 0.945, True), (0.95, 0.939, False), (0.95, 0.97, True), (None, 0.9, False)],
)
def test_ptq_suffices_within_the_bound_of_the_gate(
    tmp_path: Path, before: float | None, after: float, skips: bool
) -> None:
    for name in ("baseline", "ptq"):
        (tmp_path / name).mkdir()
    if before is not None:
        Baseline(tmp_path / "baseline").write_metrics({"validation_accuracy": before})
    # The test part says the opposite, and decides nothing.
    Quantized(tmp_path / "ptq").write_metrics({"validation_accuracy": after, "test_accuracy": 0.1})
    reason = ptq_suffices(
        Baseline(tmp_path / "baseline"), Quantized(tmp_path / "ptq"), ACCURACY, GateSettings()
    )
    assert bool(reason) is skips


def test_reason_names_both_accuracies(tmp_path: Path) -> None:
    for name in ("baseline", "ptq"):
        (tmp_path / name).mkdir()
        Baseline(tmp_path / name).write_metrics({"validation_accuracy": 0.95})
    reason = ptq_suffices(
        Baseline(tmp_path / "baseline"), Quantized(tmp_path / "ptq"), ACCURACY, GateSettings()
    )
    assert "95.00% on the validation part against 95.00% in FP32" in reason
