"""Learned ranges against the paper's LSQ (arXiv 1902.08153).

Of activations and of weights.
"""

import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from qat_lib import (
    QuantizationSpec,
    TensorQuantizer,
    calibrate,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.errors import SpecError
from qat_lib.keras.quantizers import AMAX_FLOOR

STEPS = 150


class Lsq:
    """The paper's quantizer in NumPy, float64; the step is the parameter.

    As in its equations 1 to 3.

    Args:
        step: the first step, a scalar or one for each channel.
        low: least integer.
        high: greatest integer.
    """

    def __init__(self, step: np.ndarray | float, low: int, high: int) -> None:
        self.step = np.asarray(step, np.float64)
        self.low, self.high = low, high
        self.mean = self.square = np.zeros_like(self.step)
        self.count = 0

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient of ``sum((quantized - x) ** 2)`` to the step, LSQ-scaled.

        The scale is the paper's.
        """
        ratio = x / self.step
        integers = np.clip(np.rint(ratio), self.low, self.high)
        inside = (ratio >= self.low) & (ratio <= self.high)
        each = np.where(inside, integers - ratio, integers) * 2 * (integers * self.step - x)
        axes = tuple(i for i in range(x.ndim) if self.step.ndim == 0 or self.step.shape[i] == 1)
        size = x.size / self.step.size
        return each.sum(axis=axes, keepdims=self.step.ndim > 0) / np.sqrt(size * self.high)

    def sgd(self, x: np.ndarray, rate: float) -> None:
        self.step = self.step - rate * self.gradient(x)

    def adam(self, x: np.ndarray, rate: float) -> None:
        gradient = self.gradient(x)
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        corrected = np.sqrt(self.square / (1 - 0.999**self.count)) + 1e-7
        self.step = self.step - rate * self.mean / (1 - 0.9**self.count) / corrected


KINDS = {
    "signed": ({}, -128, 127),
    "unsigned": ({"unsigned": True}, 0, 255),
    "channels": ({"narrow_range": True, "channel_axes": (-1,)}, -127, 127),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_learned_range_follows_trajectory_of_paper(optimizer: str, kind: str) -> None:
    options, low, high = KINDS[kind]
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    quantizer = TensorQuantizer(range_policy="learned", **options)
    quantizer.build(x.shape)
    quantizer.amax = 0.5
    reference = Lsq(np.broadcast_to(0.5 / high, quantizer.amax.shape), low, high)
    rate = 1e-4
    keras_optimizer = (
        keras.optimizers.SGD(rate) if optimizer == "sgd" else keras.optimizers.Adam(rate)
    )

    @tf.function
    def train() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((quantizer(x, training=True) - x) ** 2)
        keras_optimizer.apply(
            tape.gradient(loss, quantizer.trainable_variables), quantizer.trainable_variables
        )

    for _ in range(STEPS):
        train()
        getattr(reference, optimizer)(x, rate)
    np.testing.assert_allclose(quantizer.amax, reference.step * high, rtol=2e-3)
    assert np.all(np.abs(quantizer.amax - 0.5) > 0.1)  # and it did move


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Dense(3, name="head")(x))


def learned() -> keras.Model:
    spec = QuantizationSpec().add("head", range_policy="learned", weight_range_policy="learned")
    return quantize_model(network(), quantization_spec=spec)


def images(count: int = 32) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 6)).astype(np.float32)


def test_the_ranges_of_weights_can_be_learned() -> None:
    model = learned()
    weight = model_quantizers(model)["head_kernel_quantizer"]
    kernel = model.get_layer("quant_head").layer.kernel
    assert weight.range_policy == "learned"
    own = np.abs(kernel.numpy()).max(axis=0, keepdims=True)
    np.testing.assert_allclose(weight.amax, own, rtol=1e-6)
    assert weight.calibrated
    assert {"head_kernel_quantizer/step", "x_quantizer/step"} <= {
        "/".join(v.path.split("/")[-2:]) for v in model.trainable_variables
    }
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    model.fit(images(), np.zeros((32, 3)), epochs=3, verbose=0)
    assert np.all(np.abs(weight.amax / own - 1) > 0.01)
    assert not np.allclose(weight.amax, np.abs(kernel.numpy()).max(axis=0), rtol=1e-3)


def test_current_weight_range_is_the_default() -> None:
    plan = plan_quantization(network())
    assert [entry.range_policy for entry in plan.by_kind("weight")] == ["current"]
    with pytest.raises(
        SpecError, match="weight_range_policy of 'head' must be one of current, frozen, learned"
    ):
        QuantizationSpec().add("head", weight_range_policy="ema")


def test_calibration_sets_learned_weight_ranges_per_channel() -> None:
    model = learned()
    weight = model_quantizers(model)["head_kernel_quantizer"]
    layer = model.get_layer("quant_head").layer
    layer.set_weights([np.float32(np.arange(18).reshape(6, 3)), np.zeros(3)])
    report = calibrate(model, images(), "max")
    assert set(report.tensors) == {"x_quantizer"}
    np.testing.assert_allclose(weight.amax, [[15, 16, 17]], rtol=1e-6)


def test_learned_ranges_survive_saving_and_loading(tmp_path: Path) -> None:
    model = learned()
    calibrate(model, images(), "max")
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    for name, quantizer in model_quantizers(model).items():
        np.testing.assert_array_equal(model_quantizers(loaded)[name].amax, quantizer.amax)
    np.testing.assert_array_equal(loaded(images()), model(images()))


def test_files_with_learned_amax_still_load(tmp_path: Path) -> None:
    """Older files hold amax alone, under the same key.

    They were saved before the step was the parameter.
    """
    model = learned()
    calibrate(model, images(), "max")
    model.save(tmp_path / "new.keras")
    with (
        zipfile.ZipFile(tmp_path / "new.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        for name in new.namelist():
            path = new.extract(name, tmp_path)
            if name.endswith(".h5"):
                with h5py.File(path, "a") as file:
                    found: list[str] = []
                    file.visit(
                        lambda key, found=found: (
                            found.append(key) if key.endswith("/step") else None
                        )
                    )
                    assert len(found) == 2
                    for key in found:
                        del file[key]
            old.write(path, name)
    loaded = load_model(tmp_path / "old.keras")
    for name, quantizer in model_quantizers(model).items():
        np.testing.assert_allclose(model_quantizers(loaded)[name].amax, quantizer.amax, rtol=2e-7)
        assert model_quantizers(loaded)[name].calibrated
    np.testing.assert_allclose(loaded(images()), model(images()), atol=1e-5)


@pytest.mark.parametrize(("source", "target"), [("ema", "learned"), ("learned", "ema")])
def test_weights_files_move_between_policies(source: str, target: str, tmp_path: Path) -> None:
    models = {
        policy: quantize_model(
            network(), quantization_spec=QuantizationSpec().add("head", range_policy=policy)
        )
        for policy in (source, target)
    }
    model_quantizers(models[source])["x_quantizer"].amax = 1.5
    models[source].save_weights(tmp_path / "w.weights.h5")
    models[target].load_weights(tmp_path / "w.weights.h5")
    assert float(model_quantizers(models[target])["x_quantizer"].amax) == pytest.approx(
        1.5, rel=1e-6
    )


def test_quantizer_takes_over_range_of_another_policy() -> None:
    ema, learned = (
        TensorQuantizer(name=policy, range_policy=policy) for policy in ("ema", "learned")
    )
    for quantizer in (ema, learned):
        quantizer.build(None)
    learned.take_over(ema)  # the initial range; that it is none of the data's, too
    assert (float(learned.amax), learned.calibrated) == (pytest.approx(6.0, rel=1e-6), False)
    ema.amax = 2.5
    ema.disable()
    learned.take_over(ema)
    assert (float(learned.amax), learned.calibrated, learned.enabled) == (
        pytest.approx(2.5, rel=1e-6),
        True,
        False,
    )
    ema.amax = 1.0
    ema.take_over(learned)
    assert float(ema.amax) == float(learned.amax)


@pytest.mark.matrix_except("*-2", "*-8")
@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("unsigned", [False, True])
def test_learned_range_never_falls_below_floor(bits: int, unsigned: bool) -> None:
    quantizer = TensorQuantizer(num_bits=bits, unsigned=unsigned, range_policy="learned")
    quantizer.build(None)
    (step,) = quantizer.trainable_variables
    step.assign(step.constraint(tf.constant(-1.0)))
    # Above the floor in float32, too: below it the gradient would be zero for good.
    assert step.numpy() * np.float32((2**bits if unsigned else 2 ** (bits - 1)) - 1) >= np.float32(
        AMAX_FLOOR
    )
    quantizer.amax = 0.0
    assert float(quantizer.amax) == pytest.approx(AMAX_FLOOR, rel=1e-6)
