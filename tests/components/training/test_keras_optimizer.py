"""Optimizers of a Keras training."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from qat_lib.errors import ConfigError
from qatline.components.settings import TrainingSettings
from qatline.components.training.keras_optimizer import RateTable, optimizer_of


def sgd(learning_rate: Any, momentum: float = 0.0) -> Any:
    return keras.optimizers.SGD(learning_rate, momentum=momentum)


def test_factory_gets_rate_and_options() -> None:
    code = {"name": f"{__name__}:sgd", "options": {"momentum": 0.5}}
    found = optimizer_of(TrainingSettings(optimizer=code, learning_rate=0.2), 10)
    assert (type(found), found.momentum) == (keras.optimizers.SGD, 0.5)
    assert isinstance(found._learning_rate, keras.optimizers.schedules.CosineDecay)
    lion = optimizer_of(TrainingSettings(optimizer="keras.optimizers:Lion"), 10)
    assert type(lion) is keras.optimizers.Lion


def test_factory_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training.optimizer: 'builtins:dict' returned a dict"):
        optimizer_of(TrainingSettings(optimizer="builtins:dict"), 10)


def test_rate_table_keeps_the_last_rate() -> None:
    table = RateTable.from_config(RateTable([0.5, 0.25]).get_config())
    assert [float(table(step)) for step in (0, 1, 7)] == [0.5, 0.25, 0.25]
