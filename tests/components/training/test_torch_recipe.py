"""A recipe in a training of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import qat_lib.torch
from qatline.components.artifacts.models import TorchRecipe
from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.training import torch_fitting
from qatline.components.training.array_data import ArrayData
from qatline.components.training.framework import Oscillation
from qatline.components.training.recipe import Recipe
from qatline.components.training.torch_network import TorchNetwork
from qatline.components.training.torch_recipe import TorchTrainingRecipe

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(1.0, 2.0, (160, 1, 1, 3)).astype(np.float32)
Y = (X.sum((1, 2, 3)) > 3).astype(np.int64)
DATA = ArrayData(
    training=Labelled(x=X[:32], targets=Y[:32]),
    validating=Labelled(x=X[32:], targets=Y[32:]),
    task=task_for("classification", classes=["0", "1"]),
)
IMAGES = torch.from_numpy(np.moveaxis(X, -1, 1).copy())


def network(policy: str = "frozen") -> TorchNetwork:
    torch.manual_seed(4)
    parts = (nn.Flatten(), nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    module = nn.Sequential(*parts).eval()
    plan = qat_lib.torch.plan_quantization(module, example_input=IMAGES)
    module = qat_lib.torch.apply_plan(module, plan.with_range_policy(policy), example_input=IMAGES)
    qat_lib.torch.calibrate(module, [IMAGES], freeze=policy == "frozen")
    recipe = TorchRecipe(name="x:y", options={}, image_shape=(1, 1, 3), classes=2)
    return TorchNetwork(module=module, recipe=recipe)


def recipe_with(module: nn.Module, **asked: Any) -> TorchTrainingRecipe:
    return TorchTrainingRecipe(module, Recipe(**asked), lambda: [IMAGES[:32]], None)


def norm_of(module: nn.Module) -> nn.BatchNorm1d:
    (norm,) = [part for part in module.modules() if isinstance(part, nn.BatchNorm1d)]
    return norm


def test_begin_epoch_freezes_from_its_epoch_on() -> None:
    module = network("learned").module
    recipe = recipe_with(module, freeze_batch_norm=1, freeze_ranges=2)
    steps = qat_lib.torch.training.range_parameters(module)
    found = []
    for epoch in range(3):
        recipe.begin_epoch(epoch)
        found.append((norm_of(module).training, steps[0].requires_grad))
    assert found == [(True, True), (False, True), (False, False)]
    recipe.finish()
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_finish_leaves_what_was_frozen_before() -> None:
    module = network().module
    norm_of(module).weight.requires_grad_(False)
    recipe = recipe_with(module, freeze_batch_norm=0)
    recipe.begin_epoch(0)
    recipe.finish()
    assert not norm_of(module).weight.requires_grad
    assert norm_of(module).bias.requires_grad


def test_finish_lets_followed_ranges_follow_again() -> None:
    module = network("ema").module
    recipe = recipe_with(module, freeze_ranges=0)
    recipe.begin_epoch(0)
    quantizers = qat_lib.torch.model_quantizers(module).values()
    assert all(quantizer.frozen for quantizer in quantizers)
    recipe.finish()
    assert not all(quantizer.frozen for quantizer in quantizers)


def test_candidate_has_statistics_of_its_own_for_its_block() -> None:
    module = network().module
    before = norm_of(module).running_mean.clone()
    with recipe_with(module, reestimate_batch_norm=True).candidate():
        assert not torch.allclose(norm_of(module).running_mean, before)
    assert torch.equal(norm_of(module).running_mean, before)


def test_oscillation_is_measured_where_it_is_noted() -> None:
    noted = Oscillation()
    schedule = QATSettings(epochs=1, batch_size=8, augment="none")
    torch_fitting.fit_network(
        network(), DATA, schedule, seed=0, progress=NullProgress(), oscillation=noted
    )
    assert len(noted.oscillating) == 2
    assert set(noted.frozen.values()) == {0.0}


@pytest.mark.parametrize(
    "asked",
    [
        {"ema": 0.9},
        {"reestimate_batch_norm": True},
        {"ema": 0.5, "reestimate_batch_norm": True, "freeze_batch_norm": 2},
    ],
    ids=str,
)
def test_fit_ends_with_the_weights_that_were_judged(asked: dict[str, Any]) -> None:
    ours = network()
    schedule = QATSettings(epochs=3, batch_size=8, learning_rate=0.05, augment="none", **asked)
    rows = torch_fitting.fit_network(
        ours, DATA, schedule, seed=0, progress=NullProgress(), keep_best=True
    )
    (kept,) = [row for row in rows if row.kept]
    outputs = torch.from_numpy(np.concatenate([*torch_fitting.predict_network(ours, [X[32:]])]))
    loss = nn.functional.cross_entropy(outputs, torch.from_numpy(Y[32:]))
    assert float(loss) == pytest.approx(kept.val_loss, rel=1e-4)
    assert kept.epoch > 0


def test_statistics_are_measured_without_a_lone_sample() -> None:
    data = ArrayData(
        training=Labelled(x=X[:33], targets=Y[:33]), validating=DATA.validating, task=DATA.task
    )
    schedule = QATSettings(
        epochs=1, batch_size=16, augment="none", reestimate_batch_norm=True, distillation=0
    )
    rows = torch_fitting.fit_network(
        network(), data, schedule, seed=0, progress=NullProgress(), keep_best=True
    )
    assert [row.epoch for row in rows] == [0, 1]
