"""Optimizers at a given rate, and the rate of learned ranges."""

import pytest
import torch
from torch import nn

from qat_lib.errors import ConfigError
from qatline.components.settings import TrainingSettings
from qatline.components.training.torch_optimizers import make_optimizer


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_ranges_move_at_a_rate_of_their_own(name: str) -> None:
    weight, step = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    optimizer = make_optimizer(TrainingSettings(optimizer=name), [weight], [step], 0.25)
    (weight + step).backward()
    optimizer.step_at(0.1)
    assert 1 - weight.item() > 0.09
    assert 1 - step.item() == pytest.approx(0.25 * (1 - weight.item()), rel=1e-4)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_without_ranges_all_have_one_rate(name: str) -> None:
    weights = [nn.Parameter(torch.tensor(1.0)) for _ in range(2)]
    optimizer = make_optimizer(TrainingSettings(optimizer=name), weights)
    (weights[0] + weights[1]).backward()
    optimizer.step_at(0.1)
    assert weights[0].item() == weights[1].item() < 1


def test_a_parameter_without_a_gradient_stays() -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    make_optimizer(TrainingSettings(optimizer="sgd"), [weight]).step_at(0.5)
    assert weight.item() == 1.0


def test_a_factory_keeps_the_ratios_of_its_groups() -> None:
    weight, step = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    settings = TrainingSettings(optimizer="torch.optim:SGD", learning_rate=0.5)
    optimizer = make_optimizer(settings, [weight], [step], 0.25)
    (weight + step).backward()
    optimizer.step_at(0.1)
    assert (weight.item(), step.item()) == pytest.approx((0.9, 0.975))


def test_a_factory_of_something_else_is_refused() -> None:
    settings = TrainingSettings(optimizer="collections:Counter")
    with pytest.raises(
        ConfigError, match=r"training.optimizer: 'collections:Counter' returned a C"
    ):
        make_optimizer(settings, [])
