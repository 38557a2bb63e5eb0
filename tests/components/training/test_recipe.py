"""What a section of the config asks of a training."""

from types import SimpleNamespace

import pytest

from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.training.recipe import Recipe, recipe_of, reestimation_batches


def test_recipe_of_the_baseline_is_empty() -> None:
    assert recipe_of(TrainingSettings()) == Recipe()


def test_recipe_counts_epochs_from_zero() -> None:
    settings = QATSettings(freeze_batch_norm=1, freeze_ranges=3)
    recipe = recipe_of(settings)
    assert (recipe.freeze_batch_norm, recipe.freeze_ranges) == (0, 2)
    never = recipe_of(QATSettings(freeze_batch_norm=None, freeze_ranges=None))
    assert (never.freeze_batch_norm, never.freeze_ranges) == (None, None)


def test_recipe_takes_what_the_settings_say() -> None:
    settings = QATSettings(
        ema=0.5, reestimate_batch_norm=True, range_rate=0.25, freeze_oscillating=0.02
    )
    recipe = recipe_of(settings)
    assert recipe.ema == 0.5
    assert recipe.reestimate_batch_norm
    assert recipe.range_rate == 0.25
    assert recipe.freeze_oscillating == 0.02


@pytest.mark.parametrize(("samples", "expected"), [(100, 4), (4096, 128), (50_000, 128)])
def test_reestimation_batches_are_bounded(samples: int, expected: int) -> None:
    data = SimpleNamespace(samples=samples)
    assert reestimation_batches(data, 32) == expected  # type: ignore[arg-type]
