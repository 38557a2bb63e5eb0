"""Ranges in training: tf.function, XLA, mixed precision, accumulation, several devices."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import quantization_oracle as oracle
import tensorflow as tf
from keras import layers

from qat_lib import QuantizationSpec, TensorQuantizer, load_model, model_quantizers, quantize_model

FLOOR = float(oracle.AMAX_FLOOR)


def small(policy: str = "ema", dtype: str = "float32") -> keras.Model:
    keras.utils.set_random_seed(4)
    x = keras.Input((6, 6, 2), name="x")
    y = layers.Conv2D(3, 3, activation="relu", name="conv", dtype=dtype)(x)
    model = keras.Model(
        x, layers.Dense(2, name="head", dtype="float32")(layers.Flatten(name="flat")(y))
    )
    spec = QuantizationSpec().add(["conv", "head"], range_policy=policy)
    return quantize_model(model, quantization_spec=spec)


def batches(count: int = 4, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(6)
    return generator.standard_normal((4 * count, 6, 6, 2)).astype(np.float32) * scale, np.zeros(
        (4 * count, 2)
    )


def activation_ranges(model: keras.Model) -> dict[str, float]:
    found = model_quantizers(model)
    return {name: float(q.amax) for name, q in found.items() if q.range_policy != "current"}


def fit(
    model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int = 1, **options: object
) -> None:
    compile_options = {"optimizer": keras.optimizers.SGD(0.01), "loss": "mse", **options}
    model.compile(**compile_options)
    model.fit(x, y, batch_size=4, epochs=epochs, shuffle=False, verbose=0)


def moving_average(x: np.ndarray, momentum: float = 0.95) -> float:
    """Input range after one pass over ``x`` in batches of 4."""
    amax = None
    for start in range(0, len(x), 4):
        seen = np.abs(x[start : start + 4]).max()
        amax = seen if amax is None else momentum * amax + (1 - momentum) * seen
    return float(amax)


@pytest.mark.parametrize(
    "options", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=["graph", "xla", "eager"]
)
def test_the_moving_average_in_every_mode(options: dict[str, bool]) -> None:
    x, y = batches()
    model = small()
    fit(model, x, y, **options)
    ranges = activation_ranges(model)
    assert ranges["x_quantizer"] == pytest.approx(moving_average(x), rel=1e-5)
    assert 0 < ranges["flat_quantizer"] < 6
    assert all(q.calibrated for q in model_quantizers(model).values())


def test_mixed_precision() -> None:
    x, y = batches()
    model = small(dtype="mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    fit(model, x, y, optimizer=optimizer)
    assert model_quantizers(model)["x_quantizer"].variables[0].dtype == "float32"
    assert activation_ranges(model)["x_quantizer"] == pytest.approx(moving_average(x), rel=1e-5)


def test_gradient_accumulation() -> None:
    """Ranges follow every batch, weights every second one."""
    x, y = batches()
    model = small()
    fit(model, x, y, optimizer=keras.optimizers.SGD(0.01, gradient_accumulation_steps=2))
    assert activation_ranges(model)["x_quantizer"] == pytest.approx(moving_average(x), rel=1e-5)


def test_the_last_batch_s_range() -> None:
    x, y = batches()
    model = small("last")
    fit(model, x, y)
    assert activation_ranges(model)["x_quantizer"] == pytest.approx(np.abs(x[-4:]).max())


def test_a_frozen_range_stays() -> None:
    x, y = batches()
    model = small("frozen")
    model_quantizers(model)["x_quantizer"].amax = 1.5
    fit(model, x, y)
    assert activation_ranges(model) == {"x_quantizer": 1.5, "flat_quantizer": 6.0}
    assert model_quantizers(model)["x_quantizer"].frozen


def test_learned_range_is_trained_and_stays_positive() -> None:
    x, y = batches()
    model = small("learned")
    names = {v.path for v in model.trainable_variables}
    assert {"x_quantizer/step", "flat_quantizer/step"} <= names
    before = activation_ranges(model)
    fit(model, x, y, optimizer=keras.optimizers.Adam(0.5), epochs=3)
    after = activation_ranges(model)
    assert after["x_quantizer"] != before["x_quantizer"]
    # A step may carry the variable itself below zero: what is used never is.
    model_quantizers(model)["x_quantizer"]._range.assign(-3.0)
    assert activation_ranges(model)["x_quantizer"] == FLOOR
    assert np.all(np.isfinite(model(x[:4])))


def test_learned_range_recovers_from_the_floor() -> None:
    quantizer = TensorQuantizer(name="q", range_policy="learned")
    x = tf.constant([[0.5, -1.0, 2.0]])
    quantizer(x)
    optimizer = keras.optimizers.SGD(1e6)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(quantizer(x, training=True) - 9.0 * tf.sign(x)))
        gradient = tape.gradient(loss, quantizer._range.value)
        # First down, far below the floor, then up along the gradient.
        optimizer.apply([tf.abs(gradient) + 1.0], [quantizer._range])
        assert float(quantizer.amax) == FLOOR
    assert float(gradient) < 0


def test_evaluation_and_inference_leave_ranges_alone() -> None:
    x, y = batches()
    model = small()
    fit(model, x, y)
    before = activation_ranges(model)
    model.evaluate(x * 100, y, verbose=0)
    model.predict(x * 100, verbose=0)
    model(x * 100, training=False)
    assert activation_ranges(model) == before


@pytest.mark.matrix
@pytest.mark.parametrize("jit_compile", [False, True])
def test_switches_reach_what_was_traced_before(jit_compile: bool) -> None:
    x, y = batches()
    model = small()
    fit(model, x, y, jit_compile=jit_compile)
    quantizers = model_quantizers(model)
    on = model.predict(x, verbose=0)
    for quantizer in quantizers.values():
        quantizer.disable()
    off = model.predict(x, verbose=0)
    assert not np.array_equal(on, off)
    for quantizer in quantizers.values():
        quantizer.enable()
    np.testing.assert_array_equal(model.predict(x, verbose=0), on)
    for quantizer in quantizers.values():
        quantizer.freeze()
    frozen = activation_ranges(model)
    model.fit(x * 10, y, batch_size=4, verbose=0)
    assert activation_ranges(model) == frozen
    for quantizer in quantizers.values():
        quantizer.unfreeze()
    model.fit(x * 10, y, batch_size=4, verbose=0)
    assert activation_ranges(model)["x_quantizer"] > frozen["x_quantizer"]


def test_disabled_quantizer_keeps_its_range_in_training() -> None:
    x, y = batches()
    model = small()
    fit(model, x, y)
    quantizer = model_quantizers(model)["x_quantizer"]
    quantizer.disable()
    before = float(quantizer.amax)
    model.fit(x * 10, y, verbose=0)
    assert float(quantizer.amax) == before
    assert not quantizer.enabled


def test_non_finite_batch_leaves_the_range() -> None:
    quantizer = TensorQuantizer(name="q")
    quantizer(tf.constant([1.0, -2.0]), training=True)
    for bad in (np.nan, np.inf):
        quantizer(tf.constant([1.0, bad]), training=True)
        assert float(quantizer.amax) == 2.0


def test_zero_batch_never_gives_zero_scale() -> None:
    for policy in ("ema", "last"):
        quantizer = TensorQuantizer(name="q", range_policy=policy)
        for _ in range(2):
            y = quantizer(tf.zeros((2, 3)), training=True)
        assert float(quantizer.amax) == FLOOR
        assert quantizer.scale > 0
        np.testing.assert_array_equal(y, np.zeros((2, 3)))


def test_ranges_and_switches_survive_saving(tmp_path: Path) -> None:
    x, y = batches()
    model = small()
    fit(model, x, y)
    quantizers = model_quantizers(model)
    quantizers["flat_quantizer"].freeze()
    quantizers["conv_kernel_quantizer"].disable()
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded, fresh = load_model(tmp_path / "model.keras"), small()
    fresh.load_weights(tmp_path / "model.weights.h5")
    for other in (loaded, fresh):
        assert activation_ranges(other) == activation_ranges(model)
        for name, quantizer in model_quantizers(other).items():
            original = quantizers[name]
            assert (quantizer.enabled, quantizer.frozen, quantizer.calibrated) == (
                original.enabled,
                original.frozen,
                original.calibrated,
            )
        np.testing.assert_array_equal(other(x, training=False), model(x, training=False))


def test_training_continues_from_a_file(tmp_path: Path) -> None:
    x, y = batches()
    straight = small()
    fit(straight, x, y, epochs=2)
    stopped = small()
    fit(stopped, x, y)
    stopped.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(tmp_path / "model.keras")
    resumed.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    assert activation_ranges(resumed) == pytest.approx(activation_ranges(straight), rel=1e-5)


def test_a_weight_s_range_follows_the_weight() -> None:
    x, y = batches()
    model = small()
    fit(model, x, y)
    kernel = model.get_layer("quant_conv").layer.kernel.numpy()
    expected = oracle.range_of(kernel, (-1,))
    np.testing.assert_array_equal(model_quantizers(model)["conv_kernel_quantizer"].amax, expected)


MIRRORED = """
import json
import numpy as np, tensorflow as tf, keras
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras import layers
from qat_lib import QuantizationSpec, model_quantizers, quantize_model
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    x = keras.Input((4,), name="x")
    y = layers.Dense(3, name="first", activation="relu")(x)
    y = layers.BatchNormalization(name="bn")(layers.Dense(3, name="second")(y))
    model = keras.Model(x, layers.Dense(2, name="head")(y))
    spec = QuantizationSpec().add(["first", "second", "head"], range_policy=["last", "ema", "learned"])
    model = quantize_model(model, quantization_spec=spec)
    model.compile(keras.optimizers.Adam(0.1), "mse")
data = np.random.default_rng(0).random((8, 4), np.float32)
data[4:] *= 3.0  # the second replica sees another range than the first
data[0], data[4] = 1.0, 3.0
model.fit(data, np.zeros((8, 2)), batch_size=8, epochs=2, shuffle=False, verbose=0)
activations = {n: q for n, q in model_quantizers(model).items() if q.range_policy != "current"}
print("RESULT" + json.dumps({
    "replicas": {n: [float(v.numpy()) for v in q._range.value.values] for n, q in activations.items()},
    "amax": {n: float(q.amax) for n, q in activations.items()},
    "finite": bool(np.all(np.isfinite(model.predict(data, verbose=0)))),
}))
"""


@pytest.mark.matrix
def test_replicas_agree_on_one_range() -> None:
    """Run in a process of its own.

    Logical devices are set before TensorFlow starts.
    """
    done = subprocess.run(
        [sys.executable, "-c", MIRRORED], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("RESULT")[2])
    assert found["finite"]
    assert set(found["replicas"]) == {"x_quantizer", "first_quantizer", "bn_quantizer"}
    for name, values in found["replicas"].items():
        assert len(values) == 2, name
        assert values[0] == values[1] > 0, name
    # Each batch gives the mean of both replicas' ranges, 1 and 3.
    assert found["amax"]["x_quantizer"] == pytest.approx(2.0)
    assert found["amax"]["bn_quantizer"] != 6.0
