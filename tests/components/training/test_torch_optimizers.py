"""Optimizers at a given rate, and the rate of learned ranges."""

import pytest
import torch
from torch import nn

from qatline.components.training.torch_optimizers import make_optimizer


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_ranges_move_at_a_rate_of_their_own(name: str) -> None:
    weight, step = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    optimizer = make_optimizer(name, [weight], [step], 0.25)
    (weight + step).backward()
    optimizer.step_at(0.1)
    assert 1 - weight.item() > 0.09
    assert 1 - step.item() == pytest.approx(0.25 * (1 - weight.item()), rel=1e-4)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_without_ranges_all_have_one_rate(name: str) -> None:
    weights = [nn.Parameter(torch.tensor(1.0)) for _ in range(2)]
    optimizer = make_optimizer(name, weights)
    (weights[0] + weights[1]).backward()
    optimizer.step_at(0.1)
    assert weights[0].item() == weights[1].item() < 1


def test_a_parameter_without_a_gradient_stays() -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    make_optimizer("sgd", [weight]).step_at(0.5)
    assert weight.item() == 1.0
