"""A recipe in a training of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.errors import ConfigError
from qat_lib.keras.training import FreezeBatchNorm, FreezeRanges, WeightAverage, WeightOscillation
from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.training import fitting
from qatline.components.training.array_data import ArrayData
from qatline.components.training.framework import Oscillation
from qatline.components.training.keras_recipe import KerasRecipe, RateTable, optimizer_of
from qatline.components.training.recipe import Recipe

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(1.0, 2.0, (160, 3)).astype(np.float32)
Y = (X.sum(1) > 3).astype(np.int64)
DATA = ArrayData(
    training=Labelled(x=X[:32], targets=Y[:32]),
    validating=Labelled(x=X[32:], targets=Y[32:]),
    task=task_for("classification", classes=["0", "1"]),
)


def network() -> Any:
    keras.utils.set_random_seed(4)
    x = keras.Input((3,))
    y = keras.layers.BatchNormalization(name="bn")(keras.layers.Dense(4, name="a")(x))
    model = keras.Model(x, keras.layers.Dense(2, name="b")(keras.layers.ReLU()(y)))
    model = qat_lib.quantize_model(model)
    qat_lib.calibrate(model, X)
    return model


def recipe_with(model: Any = None, **asked: Any) -> KerasRecipe:
    return KerasRecipe(model, Recipe(**asked), lambda: [X[:32]], None)


def test_an_empty_recipe_adds_nothing() -> None:
    assert recipe_with().callbacks() == []


def test_callbacks_are_what_is_asked_for_with_the_average_last() -> None:
    asked = {"ema": 0.9, "freeze_batch_norm": 1, "freeze_ranges": 2, "freeze_oscillating": 0.02}
    found = recipe_with(**asked).callbacks()
    kinds = [FreezeBatchNorm, FreezeRanges, WeightOscillation, WeightAverage]
    assert [type(each) for each in found] == kinds
    assert (found[0].epoch, found[1].epoch, found[3].decay) == (1, 2, 0.9)


def test_oscillation_is_measured_where_it_is_noted() -> None:
    model, noted = network(), Oscillation()
    schedule = QATSettings(epochs=1, batch_size=8, augment="none")
    fitting.fit(
        model, DATA, schedule, seed=0, progress=NullProgress(), keep_best=True, oscillation=noted
    )
    assert noted.oscillating.keys() == {"a_kernel_quantizer", "b_kernel_quantizer"}
    assert set(noted.frozen.values()) == {0.0}


def test_candidate_is_the_model_itself_unless_asked() -> None:
    model = network()
    before = model.get_weights()
    with recipe_with(model).candidate():
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


def test_candidate_has_statistics_of_its_own_for_its_block() -> None:
    model = network()
    (norm,) = qat_lib.keras.training.batch_norm.batch_norms(model)
    before = np.array(norm.moving_mean)
    with recipe_with(model, reestimate_batch_norm=True).candidate():
        assert not np.allclose(np.array(norm.moving_mean), before)
    np.testing.assert_array_equal(np.array(norm.moving_mean), before)


@pytest.mark.matrix_except("{'ema': 0.9}")
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
    model = network()
    schedule = QATSettings(epochs=3, batch_size=8, learning_rate=0.05, augment="none", **asked)
    rows = fitting.fit(model, DATA, schedule, seed=0, progress=NullProgress(), keep_best=True)
    (kept,) = [row for row in rows if row.kept]
    outputs = np.concatenate([*fitting.predict(model, [X[32:]])])
    logits = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
    loss = -logits[np.arange(128), Y[32:]].mean()
    assert loss == pytest.approx(kept.val_loss, rel=1e-4)
    assert kept.epoch > 0


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
