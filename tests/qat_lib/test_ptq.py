"""PtqRecipe: the stages of post-training quantization, of either framework."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import qat_lib
from qat_lib.errors import ConfigError
from qat_lib.lockstep.bias import RoundingReport
from qat_lib.ptq import PtqRecipe, front_end_of

torch = pytest.importorskip("torch")

from torch_twins import Residual, residual  # noqa: E402

import qat_lib.torch  # noqa: E402

RECIPE = PtqRecipe(backend="tensorrt", calibrator="max", batch_size=8)
X = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).astype("float32")


def made(framework: str) -> tuple[Any, Any]:
    """Return a model and inputs for it."""
    if framework == "keras":
        keras.utils.set_random_seed(0)
        return residual(), X
    torch.manual_seed(0)
    return Residual().eval(), X.transpose(0, 3, 1, 2).copy()


def outputs(model: Any, x: np.ndarray) -> np.ndarray:
    if isinstance(model, keras.Model):
        return np.asarray(model(x, training=False))
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(x)))


@pytest.mark.parametrize("framework", ["keras", "torch"])
@pytest.mark.parametrize("correct", [False, True])
def test_quantize_is_plan_apply_calibrate_and_correct(framework: str, correct: bool) -> None:
    model, x = made(framework)
    recipe = PtqRecipe(backend="tensorrt", calibrator="max", batch_size=8, bias_correction=correct)
    front: Any = qat_lib if framework == "keras" else qat_lib.torch
    example = {} if framework == "keras" else {"example_input": torch.from_numpy(x[:2])}
    plan = front.plan_quantization(model, custom_qdq_cases="auto", **example)
    expected = front.apply_plan(model, plan)
    front.calibrate(expected, x, "max", batch_size=8)
    if correct:
        front.correct_bias(expected, x, batch_size=8)
    found = recipe.quantize(model, x)
    assert recipe.plan(recipe.prepare(model, x).model).digest() == plan.digest()
    np.testing.assert_array_equal(outputs(found, x), outputs(expected, x))


@pytest.mark.matrix
def test_quantize_rounds_weights_of_keras() -> None:
    model, x = made("keras")
    recipe = PtqRecipe(backend="tensorrt", calibrator="max", rounding="adaround", batch_size=8)
    expected = qat_lib.quantize_model(model, custom_qdq_cases="auto")
    qat_lib.calibrate(expected, x, "max", batch_size=8)
    report = qat_lib.adaround(expected, x, batch_size=8)
    quantized = recipe.apply(model, recipe.plan(model))
    recipe.calibrate(quantized, x)
    layers: list[tuple[int, int]] = []
    found = recipe.correct(quantized, x, on_layer=lambda *done: layers.append(done))
    assert isinstance(found, RoundingReport)
    assert found.errors == report.errors
    assert found.shifts
    assert layers[-1] == (len(found.errors), len(found.errors))
    np.testing.assert_array_equal(outputs(recipe.quantize(model, x), x), outputs(expected, x))


def test_correct_counts_layers_of_torch() -> None:
    model, x = made("torch")
    quantized = RECIPE.apply(model, RECIPE.plan(model))
    assert RECIPE.calibrate(quantized, x).samples == 16
    layers: list[tuple[int, int]] = []
    report = RECIPE.correct(quantized, x, on_layer=lambda *done: layers.append(done))
    assert len(report.shifts) == len(layers) == layers[-1][1] == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"equalize": True}, "Equalization supports Keras models only.*equalize=False"),
        ({"rounding": "adaround"}, "AdaRound supports Keras models only.*rounding='nearest'"),
    ],
)
def test_quantize_refuses_what_torch_lacks(options: dict[str, Any], message: str) -> None:
    recipe = PtqRecipe(backend="tensorrt", calibrator="max", **options)
    with pytest.raises(ConfigError, match=message):
        recipe.quantize(*made("torch"))


def test_plan_takes_the_sign_of_the_recipe() -> None:
    model, _ = made("keras")
    signs = []
    for unsigned in (None, False):
        plan = PtqRecipe(backend="openvino", unsigned=unsigned).plan(model)
        signs.append(any(entry.unsigned for entry in plan.quantizers))
    assert signs == [True, False]


def test_metric_of_a_detector_keeps_outputs_in_float() -> None:
    class Metric:
        float_outputs = True

    assert repr(RECIPE.for_metric(Metric()).cases) == "[TensorRTQDQCase(float_outputs=True)]"
    own = PtqRecipe(cases=[])
    assert own.for_metric(Metric()) is own
    assert RECIPE.for_metric(None) is RECIPE
    assert RECIPE.for_metric(len) is RECIPE


def test_front_end_follows_the_model() -> None:
    names = [front_end_of(made(framework)[0]).__name__ for framework in ("keras", "torch")]  # type: ignore[attr-defined]
    assert names == ["qat_lib.keras.front_end", "qat_lib.torch.front_end"]
