"""Models that a config names and that ask for too much."""

import pytest

from components.runtime.model_source import open_model
from components.settings import ModelSettings
from qat_lib.errors import ConfigError


def test_open_model_bounds_the_weights_before_they_are_made() -> None:
    settings = ModelSettings(name="keras.applications:MobileNetV2", options={"alpha": 1e5})
    with pytest.raises(ConfigError, match=r"at most 2,147,483,648 bytes, received more with a variable of shape"):
        open_model(settings, (32, 32, 3), 10)


def test_open_model_takes_the_limit_from_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_MAX_MODEL", "1KiB")
    with pytest.raises(ConfigError, match=r"at most 1,024 bytes.*QATLINE_MAX_MODEL"):
        open_model(ModelSettings(), (8, 8, 1), 10)
