"""Wrappers: registered, stand-alone or placed by ``quantize_model``, saved and loaded.

They are registered by being defined.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import quantization_oracle as oracle
import tensorflow as tf
from keras import layers

import qat_lib
from qat_lib import (
    QuantizationSpec,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.errors import SpecError
from qat_lib.keras import wrappers as quantize_wrappers
from qat_lib.keras.wrappers import (
    REGISTRY,
    BaseQuantizeWrapper,
    NonWeightedBaseQuantizeWrapper,
    WeightedBaseQuantizeWrapper,
)


@pytest.fixture
def registry() -> Iterator[None]:
    """Forget what a test registered."""
    by_class, by_name = dict(REGISTRY._by_class), dict(REGISTRY._by_name)
    objects = dict(keras.saving.get_custom_objects())
    yield
    for kept, before in ((REGISTRY._by_class, by_class), (REGISTRY._by_name, by_name)):
        kept.clear()
        kept.update(before)
    keras.saving.get_custom_objects().clear()
    keras.saving.get_custom_objects().update(objects)


def pooled() -> keras.Model:
    x = keras.Input((8, 8, 3), name="x")
    return keras.Model(
        x, layers.GlobalMaxPooling2D(name="pool")(layers.Conv2D(4, 3, name="conv")(x))
    )


def data() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype(np.float32)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["GlobalMaxPool2D", "GlobalMaxPooling2D"])
def test_the_published_example(name: str, tmp_path: Path) -> None:
    from qat_lib import NonWeightedBaseQuantizeWrapper

    class GlobalMaxPool2DQuantizeWrapper(NonWeightedBaseQuantizeWrapper):
        def __init__(self, layer, **kwargs):  # type: ignore[no-untyped-def]
            """
            Creates a wrapper to emulate quantization for the GlobalMaxPool2D keras layer.
            Args:
            layer: The keras layer to be quantized.
            **kwargs: Additional keyword arguments to be passed to the keras layer.
            """
            super().__init__(layer, **kwargs)

        def build(self, input_shape):  # type: ignore[no-untyped-def]
            super().build(input_shape)

        def call(self, inputs, training=None):  # type: ignore[no-untyped-def]
            return super().call(inputs, training=training)

    assert REGISTRY.find(layers.GlobalMaxPooling2D) is GlobalMaxPool2DQuantizeWrapper
    model = pooled()
    for spec in (QuantizationSpec().add(name, is_keras_class=True), QuantizationSpec().add("pool")):
        quantized = quantize_model(model, quantization_spec=spec)
        assert type(quantized.get_layer("quant_pool")) is GlobalMaxPool2DQuantizeWrapper
        assert {"x_quantizer", "conv_quantizer"} <= set(model_quantizers(quantized))
    partial = quantize_model(model, "partial", QuantizationSpec().add(name, is_keras_class=True))
    assert set(model_quantizers(partial)) == {"conv_quantizer"}
    quantized.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(data()), quantized(data()))
    quantized.compile("sgd", "mse")
    quantized.fit(data(), np.zeros((2, 4)), verbose=0)
    for quantizer in model_quantizers(partial).values():
        quantizer.disable()
    np.testing.assert_array_equal(partial(data()), model(data()))


def test_the_registry_is_as_it_was() -> None:
    assert (
        REGISTRY.find(layers.GlobalMaxPooling2D)
        is quantize_wrappers.GlobalMaxPooling2DQuantizeWrapper
    )


@pytest.mark.usefixtures("registry")
def test_a_wrapper_of_a_user_s_layer(tmp_path: Path) -> None:
    @keras.saving.register_keras_serializable("test")
    class Scale(layers.Layer):
        def build(self, shape: Any) -> None:
            self.gain = self.add_weight(name="gain", shape=(shape[-1],), initializer="ones")

        def call(self, x: Any) -> Any:
            return x * self.gain

    x = keras.Input((4,), name="x")
    model = keras.Model(x, Scale(name="scale")(x))
    with pytest.raises(SpecError, match="ScaleQuantizeWrapper"):
        plan_quantization(
            model, quantization_spec=QuantizationSpec().add("Scale", is_keras_class=True)
        )

    class ScaleQuantizeWrapper(WeightedBaseQuantizeWrapper):
        def __init__(self, layer: Any, **kwargs: Any) -> None:
            super().__init__(layer, kernel_type="gain", **kwargs)

    # By the default table: a new wrapper's inputs and weights are quantized.
    quantized = quantize_model(model)
    found = model_quantizers(quantized)
    assert set(found) == {"x_quantizer", "scale_gain_quantizer"}
    assert found["scale_gain_quantizer"].amax.shape == (4,)
    quantized.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        load_model(tmp_path / "model.keras")(np.ones((1, 4))), quantized(np.ones((1, 4)))
    )


@pytest.mark.usefixtures("registry")
def test_wrapper_naming_a_missing_weight() -> None:
    class Conv2DQuantizeWrapper(WeightedBaseQuantizeWrapper):
        def __init__(self, layer: Any, **kwargs: Any) -> None:
            super().__init__(layer, kernel_type="filters_", **kwargs)

    with pytest.raises(SpecError, match="has no weight 'filters_'"):
        quantize_model(pooled())


def test_every_wrapper_is_a_public_name() -> None:
    names = [name for name in quantize_wrappers.__all__ if name.endswith("QuantizeWrapper")]
    assert len(names) > 50
    for name in names:
        assert getattr(qat_lib, name) is getattr(quantize_wrappers, name)
        assert issubclass(getattr(qat_lib, name), BaseQuantizeWrapper)
    with pytest.raises(AttributeError):
        qat_lib.NoSuchQuantizeWrapper  # noqa: B018


def test_the_default_table_of_the_wrappers() -> None:
    both = ("Conv2D", "Dense", "DepthwiseConv2D")
    inputs = ("AveragePooling2D", "GlobalAveragePooling2D")
    off = ("MaxPooling2D", "BatchNormalization", "Concatenate", "Add", "Multiply")
    defaults = {
        name: (wrapper.default_quantize_input, wrapper.default_quantize_weight)
        for name in (*both, *inputs, *off)
        if (wrapper := REGISTRY.find(getattr(layers, name)))
    }
    assert defaults == {
        **dict.fromkeys(both, (True, True)),
        **dict.fromkeys(inputs, (True, False)),
        **dict.fromkeys(off, (False, False)),
    }


def test_a_stand_alone_wrapper_owns_its_quantizers(tmp_path: Path) -> None:
    x = keras.Input((8, 8, 3))
    wrapper = quantize_wrappers.Conv2DQuantizeWrapper(layers.Conv2D(4, 3, name="conv"))
    model = keras.Model(x, layers.Flatten()(wrapper(x)))
    assert wrapper.name == "quant_conv"
    found = model_quantizers(model)
    assert set(found) == {"conv_input_quantizer", "conv_kernel_quantizer"}
    found["conv_input_quantizer"].amax = 2.0
    kernel = wrapper.layer.kernel.numpy()
    expected = tf.nn.conv2d(
        oracle.fake_quantize(data(), 2.0),
        oracle.fake_quantize(kernel, oracle.range_of(kernel, (-1,)), narrow_range=True),
        1,
        "VALID",
    )
    np.testing.assert_allclose(model(data()), tf.reshape(expected, (2, -1)), atol=1e-6)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(data()), model(data()))


def test_a_stand_alone_wrapper_of_several_inputs() -> None:
    a, b = keras.Input((4,)), keras.Input((4,))
    wrapper = quantize_wrappers.AddQuantizeWrapper(layers.Add(name="add"), quantization_index=[1])
    model = keras.Model([a, b], wrapper([a, b]))
    assert set(model_quantizers(model)) == {"add_input_1_quantizer"}
    with pytest.raises(SpecError, match="out of range"):
        quantize_wrappers.AddQuantizeWrapper(layers.Add(), quantization_index=[2])([a, b])


def test_quantize_model_keeps_stand_alone_wrapper() -> None:
    x = keras.Input((8, 8, 3), name="x")
    wrapper = quantize_wrappers.Conv2DQuantizeWrapper(layers.Conv2D(4, 3, name="conv"))
    model = keras.Model(x, layers.Dense(2, name="head")(layers.Flatten()(wrapper(x))))
    quantized = quantize_model(model)
    found = model_quantizers(quantized)
    assert {"conv_input_quantizer", "conv_kernel_quantizer", "head_kernel_quantizer"} <= set(found)
    assert all(quantizer.enabled for quantizer in found.values())


def test_wrapper_of_non_layer_is_refused() -> None:
    for wrong in (None, "conv", pooled()):
        with pytest.raises(SpecError, match="needs a Keras layer that is not a Functional"):
            NonWeightedBaseQuantizeWrapper(wrong)


def test_the_wrapped_layer_keeps_its_own_weights() -> None:
    """Nothing is overwritten in a call, whatever happens in it."""
    model = pooled()
    quantized = quantize_model(model)
    layer = quantized.get_layer("quant_conv").layer
    variable, before = layer.kernel, layer.kernel.numpy()
    quantized(data())
    with pytest.raises(Exception, match=r"shape|dimension|incompatible"):
        quantized(np.ones((2, 8, 8, 5), np.float32))
    assert layer.kernel is variable
    np.testing.assert_array_equal(layer.kernel.numpy(), before)
    np.testing.assert_array_equal(before, model.get_layer("conv").kernel.numpy())


def test_a_wrapped_batch_normalization_updates_its_statistics() -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.BatchNormalization(name="bn")(x))
    quantized = quantize_model(model, quantization_spec=QuantizationSpec().add("bn"))
    quantized.compile("sgd", "mse")
    quantized.fit(np.full((8, 4), 3.0), np.zeros((8, 4)), verbose=0)
    assert np.all(quantized.get_layer("quant_bn").layer.moving_mean.numpy() > 0)


def test_dropout_in_wrapped_attention_keeps_drawing() -> None:
    x = keras.Input((5, 4))
    y = layers.MultiHeadAttention(2, 3, dropout=0.5, seed=1, name="mha")(x, x)
    quantized = quantize_model(keras.Model(x, y))
    values = np.ones((1, 5, 4), np.float32) * np.arange(20).reshape(1, 5, 4)
    draws = [quantized(values, training=True).numpy() for _ in range(3)]
    assert not np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[1], draws[2])


@pytest.mark.matrix
def test_new_process_loads_model_in_safe_mode(tmp_path: Path) -> None:
    model = quantize_model(pooled())
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", data())
    np.save(tmp_path / "y.npy", model(data()))
    code = (
        "import numpy as np, qat_lib;"
        "y = qat_lib.load_model('model.keras')(np.load('x.npy'));"
        "np.testing.assert_allclose(y, np.load('y.npy'), atol=1e-6)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120)
