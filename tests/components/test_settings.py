from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from qat_lib.errors import ExportError
from qat_lib.export.options import ExportOptions, option_fields
from qatline.components.settings import (
    ExportSettings,
    PackageSettings,
    QATSettings,
    QuantizationSettings,
    TrainingSettings,
)


def test_export_settings_have_every_config_option() -> None:
    settings = ExportSettings().model_dump()
    assert list(settings) == ["target", "opset", "weights", "float_precision", "parity_samples"]
    for option in option_fields():
        if option.info.in_config and option.name != "target":
            assert settings[option.name] == option.default


@pytest.mark.parametrize(
    "values",
    [
        {"opset": 12},
        {"opset": 22},
        {"weights": "fp8"},
        {"float_precision": "bf16"},
        {"batch_size": 1},
    ],
)
def test_export_settings_refuse(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ExportSettings(**values)


def test_export_settings_give_the_options_of_the_library() -> None:
    settings = ExportSettings(target="openvino", opset=18, weights="qdq", parity_samples=3)
    assert settings.options() == ExportOptions(target="openvino", opset=18, weights="qdq")
    with pytest.raises(ExportError, match="target"):
        ExportSettings().options()


@pytest.mark.parametrize("kind", [TrainingSettings, QATSettings])
def test_schedules_give_the_rows_of_a_part(kind: Any) -> None:
    assert kind(batch_size=10).part_rows is None
    assert kind(batch_size=10, accumulate_steps=4).part_rows == 3
    assert kind(batch_size=4, accumulate_steps=4).part_rows == 1
    with pytest.raises(ValidationError, match="expected at most batch_size=4, received 5"):
        kind(batch_size=4, accumulate_steps=5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("auto", 99.99)),
        ({"percentile": 99.9}, ("percentile", 99.9)),
        ({"percentile": 99.9, "calibrator": "auto"}, ("auto", 99.9)),
        ({"calibrator": "mse"}, ("mse", 99.99)),
    ],
)
def test_a_given_percentile_chooses_the_calibrator(
    given: dict[str, Any], expected: tuple[str, float]
) -> None:
    settings = QuantizationSettings(**given)
    assert (settings.calibrator, settings.percentile) == expected
    assert QuantizationSettings(**settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"raw": True}, "expected a target with raw or publish"),
        ({"publish": "s3://b/m"}, "expected a target with raw or publish"),
        ({"target": "kserve"}, r"expected package\.publish"),
    ],
)
def test_package_settings_refuse_what_has_no_effect(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PackageSettings(**values)
