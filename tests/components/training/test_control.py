"""The FP32 model that is trained for as long as QAT, and who teaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qatline.components.artifacts import Baseline, FineTuned
from qatline.components.artifacts.models import Epoch
from qatline.components.settings import QATSettings
from qatline.components.support.events import NullProgress
from qatline.components.training import control, finetuning
from qatline.components.training.control import choose_teacher, train_control


class Recorder:
    """A framework that takes note of its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def make_deterministic(self, seed: int) -> None:
        self.calls.append(("seed", seed))

    def load(self, folder: Any) -> str:
        self.calls.append(("load", folder.path.name))
        return f"model of {folder.path.name}"

    def fit(self, model: Any, data: Any, schedule: Any, **options: Any) -> list[Epoch]:
        self.calls.append(("fit", model, schedule.epochs))
        self.options = options
        return [Epoch(epoch=1, kept=1)]

    def save(self, model: Any, folder: Any) -> None:
        self.calls.append(("save", model, folder.path.name))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any, keep: Any) -> dict[str, float]:
        keep.write_predictions([np.eye(2, dtype=np.float32)], 2)
        return {"test_accuracy": 0.75, "validation_accuracy": 0.5}

    monkeypatch.setattr(control, "measure_model", measure)


@pytest.mark.usefixtures("measured")
def test_control_is_trained_as_qat_is_but_without_a_teacher(tmp_path: Path) -> None:
    framework: Any = Recorder()
    reference, tuned = Baseline(tmp_path / "baseline"), FineTuned(tmp_path)
    settings = QATSettings(epochs=3, teacher="control")
    found = train_control(
        framework, reference, tmp_path, tuned, settings, seed=7, progress=NullProgress()
    )
    assert found == "model of baseline"
    assert framework.calls == [
        ("seed", 7),
        ("load", "baseline"),
        ("fit", found, 3),
        ("save", found, "control"),
    ]
    assert framework.options["teacher"] is None
    assert framework.options["keep_best"]
    assert framework.options["seed"] == 7


@pytest.mark.usefixtures("measured")
def test_control_is_written_with_its_figures(tmp_path: Path) -> None:
    framework: Any = Recorder()
    tuned = FineTuned(tmp_path)
    reference = Baseline(tmp_path / "baseline")
    train_control(
        framework, reference, tmp_path, tuned, QATSettings(), seed=0, progress=NullProgress()
    )
    written = tuned.control()
    assert written.test_value("accuracy") == 0.75
    assert written.metrics()["validation_accuracy"] == 0.5
    assert finetuning.final_epoch(written.history()).epoch == 1
    np.testing.assert_array_equal(written.predictions(), np.eye(2))


def test_teacher_is_who_the_settings_name(tmp_path: Path) -> None:
    framework: Any = Recorder()
    reference = Baseline(tmp_path / "baseline")
    settings = QATSettings(teacher="control", distillation=0.5)
    assert choose_teacher(framework, reference, "control", settings) == "control"
    settings = QATSettings(teacher="baseline", distillation=0.5)
    assert choose_teacher(framework, reference, "control", settings) == "model of baseline"


def test_without_distillation_no_teacher_is_loaded(tmp_path: Path) -> None:
    framework: Any = Recorder()
    settings = QATSettings(distillation=0.0)
    assert choose_teacher(framework, Baseline(tmp_path), None, settings) is None
    assert framework.calls == []
