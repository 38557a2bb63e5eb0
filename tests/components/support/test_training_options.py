"""The options of a fine-tuning: one place for config and command line."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from qat_lib.support.option_fields import fields_of
from qatline.components.settings import CustomTraining, QATSettings
from qatline.components.support.training_options import FinetuningOptions


def test_settings_have_every_option_with_its_default() -> None:
    custom = set(CustomTraining.model_fields)
    found = {
        name: each.default for name, each in QATSettings.model_fields.items() if name not in custom
    }
    assert found == {each.name: each.default for each in fields_of(FinetuningOptions)}
    assert QATSettings().epochs == FinetuningOptions().epochs


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("epochs", 0, -1),
        ("learning_rate", 1e-9, 0.0),
        ("distillation", 1.0, 1.01),
        ("ema", 0.0, 1.0),
        ("freeze_batch_norm", 1, 0),
        ("freeze_ranges", 10_000, 10_001),
        ("range_rate", 100, 0),
        ("freeze_oscillating", 1.0, 0.0),
        ("teacher", "control", "student"),
        ("augment", "flip_crop", "mirror"),
    ],
)
def test_settings_keep_the_bounds_of_the_options(name: str, good: object, bad: object) -> None:
    assert getattr(QATSettings.model_validate({name: good}), name) == good
    with pytest.raises(ValidationError):
        QATSettings.model_validate({name: bad})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"control": True}, True),
        ({"teacher": "control"}, True),
        ({"teacher": "control", "distillation": 0.0}, False),
        ({"control": True, "distillation": 0.0}, True),
    ],
)
def test_a_control_is_trained_to_be_shown_or_to_teach(
    given: dict[str, object], expected: bool
) -> None:
    assert QATSettings.model_validate(given).trains_control is expected
