"""Quantized models in mixed precision and with recomputed activations."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from qat_lib import (
    TensorRTQDQCase,
    apply_plan,
    calibrate,
    model_quantizers,
    plan_quantization,
)


def data(count: int = 32) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(6)
    return generator.random((count, 8, 8, 3), np.float32), np.arange(count) % 4


def network(dtype: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(4)
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(8, 3, use_bias=False, name="conv", dtype=dtype)(image)
    x = layers.ReLU(name="relu", dtype=dtype)(layers.BatchNormalization(name="bn", dtype=dtype)(x))
    x = layers.Conv2D(8, 3, name="second", activation="relu", dtype=dtype)(x)
    x = layers.Flatten(name="flat", dtype=dtype)(x)
    return keras.Model(image, layers.Dense(4, name="logits", dtype="float32")(x))


def quantized(model: keras.Model, policy: str) -> keras.Model:
    plan = plan_quantization(model, "full", None, [TensorRTQDQCase()])
    made = apply_plan(model, plan.with_range_policy(policy))
    calibrate(made, data()[0], "max")
    return made


def compiled(model: keras.Model, optimizer: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


@pytest.mark.matrix_except("mixed_bfloat16-learned")
@pytest.mark.parametrize("policy", ["ema", "learned"])
@pytest.mark.parametrize("half", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_with_float32_ranges(half: str, policy: str) -> None:
    x, y = data()
    model = quantized(network(half), policy)
    optimizer: Any = keras.optimizers.Adam(3e-3)
    if half == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    history = compiled(model, optimizer).fit(x, y, batch_size=8, epochs=4, verbose=0)
    losses = history.history["loss"]
    assert np.all(np.isfinite(losses))
    assert losses[-1] < losses[0]
    for name, quantizer in model_quantizers(model).items():
        assert quantizer.variables[0].dtype == "float32", name
        assert quantizer.amax.dtype == np.float32, name
        assert np.all(np.isfinite(quantizer.amax)), name
    assert model.get_layer("quant_second").layer.compute_dtype == half.removeprefix("mixed_")
    assert model.get_layer("quant_second").layer.kernel.dtype == "float32"


def test_gradient_accumulation_equals_one_large_batch() -> None:
    x, y = data()
    found = []
    for steps, batch in ((4, 8), (None, 32)):
        model = network()
        model.get_layer("bn").trainable = False
        model = quantized(model, "frozen")
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)
        compiled(model, optimizer).fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        found.append(model.get_layer("quant_second").layer.kernel.numpy())
    before = network().get_layer("second").kernel.numpy()
    assert np.abs(found[1] - before).max() > 1e-3
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def gradients(model: keras.Model, recompute: bool) -> list[np.ndarray]:
    x, y = data()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step() -> Any:
        run = lambda images: model(images, training=True)  # noqa: E731
        call = tf.recompute_grad(run) if recompute else run
        with tf.GradientTape() as tape:
            value = loss(y, call(tf.constant(x)))
        return tape.gradient(value, [v.value for v in model.trainable_variables])

    return [gradient.numpy() for gradient in step()]


@pytest.mark.parametrize("policy", ["frozen", "learned"])
def test_recomputed_activations_give_the_same_gradients(policy: str) -> None:
    models = []
    for _ in range(2):
        model = quantized(network(), policy)
        models.append(model)
    plain, again = gradients(models[0], False), gradients(models[1], True)
    assert len(plain) == len(again) > 0
    for one, other in zip(plain, again, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
