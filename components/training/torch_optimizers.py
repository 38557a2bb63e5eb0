"""Optimizers of PyTorch with Keras's constants, at a rate that is given step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

EPSILON = 1e-7
"""Keras's."""


class Optimizer(Protocol):
    """What takes the steps of a training."""

    def step_at(self, rate: float) -> None:
        """Take a step at a learning rate."""

    def state_dict(self) -> dict[str, Any]:
        """Return what it knows of the steps before, as PyTorch's optimizers do."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what ``state_dict`` returned."""


class _Wrapped:
    """An optimizer of PyTorch within."""

    _optimizer: torch.optim.Optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return what it knows of the steps before."""
        state: dict[str, Any] = self._optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what ``state_dict`` returned."""
        self._optimizer.load_state_dict(state)


class Adam(_Wrapped):
    """Adam with Keras's constants, without weight decay of its own.

    Args:
        parameters: what it changes.
        ranges: learned ranges, which it changes as well.
        range_rate: rate of the ranges over that of the parameters.
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
    """Gradient descent with Nesterov's momentum as Keras has it.

    Its velocity holds each gradient times the rate of its own step; that of ``torch.optim.SGD``
    takes the rate of now for all.

    Args:
        parameters: what it changes.
        ranges: learned ranges, which it changes as well.
        range_rate: rate of the ranges over that of the parameters.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranges: Sequence[nn.Parameter] = (),
        range_rate: float = 1.0,
    ) -> None:
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


def make_optimizer(
    name: str,
    parameters: Sequence[nn.Parameter],
    ranges: Sequence[nn.Parameter] = (),
    range_rate: float = 1.0,
) -> Optimizer:
    """Return the optimizer of a config's ``optimizer``."""
    kind = Momentum if name == "sgd" else Adam
    return kind(parameters, ranges, range_rate)
