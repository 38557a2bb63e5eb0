"""PyTorch optimizers with Keras's constants and an explicit learning rate per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from qat_lib.errors import ConfigError
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.settings.code_settings import name_and_options
from qatline.components.support.user_code import call_with, import_callable

EPSILON = 1e-7
"""Keras's default."""


class Optimizer(Protocol):
    """Optimizer of a training."""

    def step_at(self, rate: float) -> None:
        """Take a step at a learning rate."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, in PyTorch's format."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of ``state_dict``."""


class _Wrapped:
    """Base of wrappers of a PyTorch optimizer."""

    _optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer."""
        state: dict[str, Any] = self._optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of ``state_dict``."""
        self._optimizer.load_state_dict(state)


class Adam(_Wrapped):
    """Adam with Keras's constants and without weight decay.

    Args:
        parameters: parameters to optimize.
        ranges: learned ranges to optimize.
        range_rate: learning rate of the ranges relative to the parameters.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranges: Sequence[nn.Parameter] = (),
        range_rate: float = 1.0,
    ) -> None:
        groups = [{"params": list(parameters)}]
        if ranges:
            groups.append({"params": list(ranges)})
        self._optimizer = torch.optim.Adam(groups, lr=0.0, eps=EPSILON)
        self._shares = (1.0, range_rate)

    def step_at(self, rate: float) -> None:
        """Take a step at a learning rate."""
        for group, share in zip(self._optimizer.param_groups, self._shares, strict=False):
            group["lr"] = rate * share
        self._optimizer.step()


class Momentum(_Wrapped):
    """Gradient descent with Nesterov momentum, as in Keras.

    The velocity accumulates each gradient times the learning rate of its own step;
    ``torch.optim.SGD`` applies the current rate to the whole velocity.

    Args:
        parameters: parameters to optimize.
        ranges: learned ranges to optimize.
        range_rate: learning rate of the ranges relative to the parameters.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranges: Sequence[nn.Parameter] = (),
        range_rate: float = 1.0,
    ) -> None:
        # With lr=1 and gradients scaled in ``step_at``, torch's velocity contains the rate of each
        # step.
        self._parts = ((parameters, 1.0), (ranges, range_rate))
        self._optimizer = torch.optim.SGD(
            [*parameters, *ranges], lr=1.0, momentum=0.9, nesterov=True
        )

    def step_at(self, rate: float) -> None:
        """Take a step at a learning rate."""
        for parameters, share in self._parts:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(rate * share)
        self._optimizer.step()


class UserOptimizer(_Wrapped):
    """The optimizer of a user's factory.

    The ratios of its groups' learning rates are kept.

    Args:
        optimizer: the optimizer.
        rate: the learning rate that the factory received.
        ranges: learned ranges, in groups apart from other parameters.
        range_rate: learning rate of the ranges relative to the parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rate: float,
        ranges: Sequence[nn.Parameter],
        range_rate: float,
    ) -> None:
        self._optimizer, self._shares = optimizer, []
        known = {id(parameter) for parameter in ranges}
        for group in optimizer.param_groups:
            of_ranges = all(id(parameter) in known for parameter in group["params"])
            self._shares.append(float(group["lr"]) / rate * (range_rate if of_ranges else 1.0))

    def step_at(self, rate: float) -> None:
        """Take a step at a learning rate."""
        for group, share in zip(self._optimizer.param_groups, self._shares, strict=True):
            group["lr"] = rate * share
        self._optimizer.step()


def make_optimizer(
    schedule: TrainingSettings | QATSettings,
    parameters: Sequence[nn.Parameter],
    ranges: Sequence[nn.Parameter] = (),
    range_rate: float = 1.0,
) -> Optimizer:
    """Return the optimizer of a training.

    Raises:
        ConfigError: the user's factory fails, or returns something else.
    """
    name, options = name_and_options(schedule.optimizer)
    if ":" not in name:
        kind = Momentum if name == "sgd" else Adam
        return kind(parameters, ranges, range_rate)
    key, rate = f"{schedule.section}.optimizer", schedule.learning_rate
    params: list[Any] = list(parameters)
    if ranges:
        params = [{"params": params}, {"params": list(ranges), "weight_decay": 0.0}]
    given = {"params": params, "lr": rate}
    found = call_with(key, name, import_callable(key, name), given, options, any_keyword=True)
    if not isinstance(found, torch.optim.Optimizer):
        raise ConfigError(
            f"{key}: {name!r} returned a {type(found).__name__}, expected a torch.optim.Optimizer"
        )
    return UserOptimizer(found, rate, ranges, range_rate)
