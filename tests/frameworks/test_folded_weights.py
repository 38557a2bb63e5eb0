"""``folded_weights``: weights that are quantized once for many forward passes."""

from typing import Any

import numpy as np
import pytest

X = np.random.default_rng(0).normal(0.0, 1.0, (6, 8, 8, 3)).astype(np.float32)


@pytest.fixture
def model(framework: Any) -> Any:
    """A calibrated model."""
    model = framework.api.quantize_model(framework.network())
    framework.api.calibrate(model, [framework.samples(X)])
    return model


def weights_of(framework: Any, model: Any) -> list[Any]:
    """Return the quantizers of weights."""
    return [each for each in framework.api.model_quantizers(model).values() if each.of_weight]


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_outputs_stay_the_same_bit_for_bit(framework: Any, model: Any) -> None:
    x, before = framework.samples(X), framework.state(model)
    quantizers = weights_of(framework, model)
    expected = framework.predict(model, x)
    trained = [framework.array(quantizer.weight) for quantizer in quantizers]
    with framework.api.folded_weights(model):
        np.testing.assert_array_equal(framework.predict(model, x), expected)
        for quantizer, weight in zip(quantizers, trained, strict=True):
            assert not quantizer.enabled
            assert np.any(framework.array(quantizer.weight) != weight)
    assert_same(framework.state(model), before)
    assert all(quantizer.enabled for quantizer in quantizers)
    np.testing.assert_array_equal(framework.predict(model, x), expected)


def test_an_error_within_the_block_leaves_the_model_as_it_was(framework: Any, model: Any) -> None:
    before = framework.state(model)
    with pytest.raises(ZeroDivisionError), framework.api.folded_weights(model):
        raise ZeroDivisionError
    assert_same(framework.state(model), before)


def test_an_assigned_weight_keeps_its_value(framework: Any, model: Any) -> None:
    before, weight = framework.state(model), weights_of(framework, model)[-1].weight
    trained = framework.array(weight)
    with framework.api.folded_weights(model):
        framework.assign(weight, np.ones_like(trained))
    np.testing.assert_array_equal(framework.array(weight), np.ones_like(trained))
    framework.assign(weight, trained)
    assert_same(framework.state(model), before)


def test_a_weight_that_is_not_finite_comes_back(framework: Any, model: Any) -> None:
    weight = weights_of(framework, model)[-1].weight
    broken = framework.array(weight)
    broken[0, 0] = np.nan
    framework.assign(weight, broken)
    with framework.api.folded_weights(model):
        pass
    np.testing.assert_array_equal(framework.array(weight), broken)


def test_quantizers_that_are_off_stay_off(framework: Any, model: Any) -> None:
    off = weights_of(framework, model)[0]
    off.disable()
    before = framework.array(off.weight)
    with framework.api.folded_weights(model):
        np.testing.assert_array_equal(framework.array(off.weight), before)
    assert not off.enabled
