"""Learning rates by a function of the user."""

from __future__ import annotations

from typing import Any

import pytest

from qat_lib.errors import ConfigError
from qatline.components.settings import TrainingSettings
from qatline.components.training.rates import rate_at, user_schedule
from tests.components.training.linear import train
from tests.components.training.test_user_callbacks import BOTH


def falling(learning_rate: float, steps: int, last: float = 0.0) -> Any:
    return lambda step: learning_rate + (last - learning_rate) * step / steps


def negative() -> Any:
    return lambda _: -1.0


def schedule(name: Any, **options: Any) -> TrainingSettings:
    return TrainingSettings(
        epochs=3,
        batch_size=25,
        augment="none",
        learning_rate=0.3,
        schedule={"name": name if ":" in name else f"{__name__}:{name}", "options": options},
    )


@pytest.mark.parametrize("framework", BOTH)
def test_function_sets_the_rate_of_each_step(framework: str) -> None:
    _, rows = train(framework, schedule("falling", last=0.06))
    assert [row.lr for row in rows] == pytest.approx([0.22, 0.14, 0.14], rel=1e-5)


def test_keras_schedules_are_taken_as_they_are() -> None:
    name = "keras.optimizers.schedules:InverseTimeDecay"
    given = schedule(name, initial_learning_rate=0.4, decay_steps=1, decay_rate=1.0)
    _, rows = train("keras", given)
    assert [row.lr for row in rows] == pytest.approx([0.2, 0.4 / 3, 0.1])
    own = user_schedule(given, 3)
    assert own is not None
    assert rate_at(given, own, 1) == pytest.approx(0.2)


@pytest.mark.parametrize("framework", BOTH)
def test_constant_rate_stays(framework: str) -> None:
    given = TrainingSettings(
        epochs=2, batch_size=25, augment="none", learning_rate=0.25, schedule="constant"
    )
    assert [row.lr for row in train(framework, given)[1]] == [0.25, 0.25]


def test_constant_rate_can_be_changed_by_a_callback() -> None:
    given = TrainingSettings(
        epochs=3,
        batch_size=25,
        augment="none",
        learning_rate=1e-9,
        schedule="constant",
        callbacks=[
            {
                "name": "ReduceLROnPlateau",
                "options": {"patience": 1, "min_lr": 1e-12, "min_delta": 1.0},
            }
        ],
    )
    assert train("keras", given)[1][-1].lr == pytest.approx(1e-10, rel=1e-3)


@pytest.mark.parametrize("framework", BOTH)
def test_wrong_rate_is_named(framework: str) -> None:
    with pytest.raises(ConfigError, match=r"training.schedule: .* returned the rate -1.0 for step"):
        train(framework, schedule("negative"))


def test_other_results_are_refused() -> None:
    with pytest.raises(ConfigError, match="'builtins:int' returned a int, expected a function"):
        user_schedule(schedule("builtins:int"), 4)
