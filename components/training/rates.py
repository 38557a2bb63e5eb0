"""Learning rate of each step, built in or by a function of the user."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from qat_lib.errors import ConfigError
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.settings.code_settings import name_and_options
from qatline.components.support.user_code import call, call_with, import_callable


def user_schedule(
    schedule: TrainingSettings | QATSettings, steps: int
) -> Callable[[Any], Any] | None:
    """Return the result of the user's function: a function from the step, from 0, to the rate.

    Args:
        schedule: the settings.
        steps: steps of the whole training.

    Returns:
        The function, possibly a ``keras.optimizers.schedules.LearningRateSchedule``; None for a
        built-in schedule.

    Raises:
        ConfigError: the function cannot be imported, fails, or returns something else.
    """
    name, options = name_and_options(schedule.schedule)
    if ":" not in name:
        return None
    key = f"{schedule.section}.schedule"
    given = {"learning_rate": schedule.learning_rate, "steps": steps}
    found: Any = call_with(key, name, import_callable(key, name), given, options)
    if not callable(found):
        raise ConfigError(
            f"{key}: {name!r} returned a {type(found).__name__}, expected a function of the step"
        )
    rate: Callable[[Any], Any] = found
    return rate


def rate_at(
    schedule: TrainingSettings | QATSettings, rate: Callable[[Any], Any], step: int
) -> float:
    """Return the rate of a step by the result of ``user_schedule``.

    Raises:
        ConfigError: the rate is no number from 0.
    """
    key, name = f"{schedule.section}.schedule", name_and_options(schedule.schedule)[0]
    value = call(key, name, lambda: float(rate(step)))
    if not 0 <= value < math.inf:
        raise ConfigError(
            f"{key}: {name!r} returned the rate {value} for step {step}, expected a number from 0"
        )
    return float(value)
