"""When ranges stop, and the rate of learned ones."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.errors import SpecError
from qat_lib.keras.training import FreezeRanges, scale_range_rate
from qat_lib.keras.training.range_training import range_variables

X = np.random.default_rng(0).normal(0.0, 3.0, (24, 4)).astype(np.float32)
Y = np.zeros((24, 2), np.float32)


def quantized(policy: str) -> Any:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    y = keras.layers.Dense(3, activation="relu", name="a")(x)
    model = keras.Model(x, keras.layers.Dense(2, name="b")(y))
    plan = qat_lib.plan_quantization(model).with_range_policy(policy)
    model = qat_lib.apply_plan(model, plan)
    qat_lib.calibrate(model, X / 2, freeze=False)
    return model


def ranges(model: Any) -> dict[str, float]:
    found = qat_lib.model_quantizers(model)
    return {name: float(q.amax) for name, q in found.items() if not q.of_weight}


def ranges_by_epoch(model: Any, *callbacks: Any, optimizer: Any = None) -> list[dict[str, float]]:
    found = [ranges(model)]
    told = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: found.append(ranges(model)))
    model.compile(optimizer or keras.optimizers.SGD(0.05), "mse")
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[*callbacks, told])
    return found


@pytest.mark.parametrize("policy", ["ema", "last", "learned"])
def test_freeze_ranges_waits_for_its_epoch(policy: str) -> None:
    model = quantized(policy)
    start, first, second, third = ranges_by_epoch(model, FreezeRanges(epoch=1))
    assert all(first[name] != value for name, value in start.items())
    assert first == second == third


@pytest.mark.parametrize("policy", ["ema", "learned"])
def test_freeze_ranges_ends_with_the_training(policy: str) -> None:
    model = quantized(policy)
    frozen = ranges_by_epoch(model, FreezeRanges())
    assert frozen[0] == frozen[-1]
    moving = ranges_by_epoch(model)
    assert all(moving[-1][name] != value for name, value in frozen[-1].items())


def test_freeze_ranges_leaves_frozen_ones_frozen() -> None:
    model = quantized("ema")
    for quantizer in qat_lib.model_quantizers(model).values():
        quantizer.freeze()
    ranges_by_epoch(model, FreezeRanges())
    assert all(quantizer.frozen for quantizer in qat_lib.model_quantizers(model).values())


def test_learned_ranges_are_the_trained_steps() -> None:
    model = quantized("learned")
    activations = [q for q in qat_lib.model_quantizers(model).values() if not q.of_weight]
    assert len(range_variables(model)) == len(activations) > 0
    assert range_variables(quantized("ema")) == []


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_scale_range_rate_scales_the_steps_of_ranges_alone(kind: Any) -> None:
    moves, weights = [], []
    for factor in (1.0, 0.25):
        model, optimizer = quantized("learned"), kind(0.001)
        scale_range_rate(optimizer, model, factor)
        before = [np.array(v.value) for v in range_variables(model)]
        model.compile(optimizer, "mse")
        model.fit(X, Y, batch_size=24, verbose=0)
        after = [np.array(v.value) for v in range_variables(model)]
        moves.append(np.subtract(after, before))
        weights.append(np.array(model.get_layer("quant_a").layer.kernel))
    np.testing.assert_allclose(moves[1], 0.25 * moves[0], rtol=1e-3)
    np.testing.assert_array_equal(weights[0], weights[1])


def test_scale_range_rate_keeps_ranges_from_decay() -> None:
    model = quantized("learned")
    optimizer = keras.optimizers.SGD(0.01, weight_decay=0.5)
    scale_range_rate(optimizer, model, 1.0)
    before = ranges(model)
    model.compile(optimizer, "mse", loss_weights=[0.0])
    model.fit(X, Y, batch_size=8, verbose=0)
    assert ranges(model) == before


def test_scale_range_rate_of_other_policies_changes_nothing() -> None:
    optimizer = keras.optimizers.SGD(0.01)
    before = dict(vars(optimizer))
    scale_range_rate(optimizer, quantized("ema"), 0.5)
    assert vars(optimizer) == before


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_scale_range_rate_refuses_no_rate(factor: float) -> None:
    with pytest.raises(SpecError, match="Expected the factor of a rate to be above 0"):
        scale_range_rate(keras.optimizers.SGD(), quantized("ema"), factor)
