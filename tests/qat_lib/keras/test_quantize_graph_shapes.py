"""Graphs of every shape.

Shared layers, nested models, several inputs and outputs, operations, masks, policies.
"""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from qat_lib import (
    QuantizationSpec,
    calibrate,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.errors import UnsupportedModelError

Inputs = Any


def data_for(model: keras.Model, count: int = 3) -> Inputs:
    """Return random inputs of the model's structure."""
    generator = np.random.default_rng(5)

    def one(tensor: Any) -> np.ndarray:
        shape = (count, *(8 if d is None else d for d in tensor.shape[1:]))
        if "int" in tensor.dtype:
            return generator.integers(1, 5, shape)
        return generator.standard_normal(shape).astype(np.float32)

    return keras.tree.map_structure(one, model.inputs[0] if len(model.inputs) == 1 else model.input)


def flat(outputs: Any) -> list[np.ndarray]:
    return [ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]


def check(model: keras.Model, tmp_path: Path, **options: Any) -> keras.Model:
    """Quantize a model and compare it with the original.

    Off it must equal the original bit for bit, on nearly, and as before when saved, loaded or
    cloned.
    """
    x = data_for(model)
    expected = flat(model(x, training=False))
    quantized = quantize_model(model, **options)
    calibrate(quantized, [(x,)], method="max")
    assert [tuple(t.shape) for t in quantized.inputs] == [tuple(t.shape) for t in model.inputs]
    assert [tuple(t.shape) for t in quantized.outputs] == [tuple(t.shape) for t in model.outputs]
    keras.tree.assert_same_structure(quantized(x), model(x))
    received = flat(quantized(x, training=False))
    assert any(not np.array_equal(a, b) for a, b in zip(expected, received, strict=True))
    for a, b in zip(expected, received, strict=True):
        assert np.abs(a - b).max() <= 0.15 * np.abs(a).max() + 1e-6
    quantized.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    copy = keras.models.clone_model(quantized)
    copy.set_weights(quantized.get_weights())
    for other in (loaded, copy):
        assert set(model_quantizers(other)) == set(model_quantizers(quantized))
        for a, b in zip(received, flat(other(x, training=False)), strict=True):
            np.testing.assert_array_equal(a, b)
    for quantizer in model_quantizers(quantized).values():
        quantizer.disable()
    for a, b in zip(expected, flat(quantized(x, training=False)), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        flat(model.predict(x, verbose=0)), flat(quantized.predict(x, verbose=0)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    return quantized


def block(x: Any, name: str) -> Any:
    y = layers.Conv2D(4, 3, padding="same", name=f"{name}_conv")(x)
    return layers.ReLU(name=f"{name}_relu")(layers.BatchNormalization(name=f"{name}_bn")(y))


def functional_backbone(name: str = "backbone") -> keras.Model:
    x = keras.Input((8, 8, 3))
    return keras.Model(x, block(block(x, "a"), "b"), name=name)


def shared_layer() -> keras.Model:
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 3), name="b")
    conv = layers.Conv2D(4, 3, name="conv")
    return keras.Model([a, b], layers.Subtract()([conv(a), conv(b)]))


def layer_called_three_times() -> keras.Model:
    x = keras.Input((6,))
    dense = layers.Dense(6, activation="tanh", name="dense")
    return keras.Model(x, dense(dense(dense(x))))


def nested_functional() -> keras.Model:
    x = keras.Input((8, 8, 3))
    y = layers.GlobalAveragePooling2D()(functional_backbone()(x))
    return keras.Model(x, layers.Dense(2, name="head")(y))


def nested_in_inference_mode() -> keras.Model:
    x = keras.Input((8, 8, 3))
    y = layers.GlobalAveragePooling2D()(functional_backbone()(x, training=False))
    return keras.Model(x, layers.Dense(2, name="head")(y))


def nested_twice() -> keras.Model:
    x = keras.Input((8, 8, 3))
    middle = keras.Model(x, layers.MaxPooling2D()(functional_backbone()(x)), name="middle")
    y = keras.Input((8, 8, 3))
    return keras.Model(y, layers.Dense(2)(layers.Flatten()(middle(y))))


def nested_sequential() -> keras.Model:
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, activation="relu"), layers.Dropout(0.5)], name="inner"
    )
    return keras.Sequential([keras.Input((6,)), inner, layers.Dense(2)])


def siamese() -> keras.Model:
    backbone = functional_backbone()
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 3), name="b")
    return keras.Model([a, b], layers.Concatenate()([backbone(a), backbone(b)]))


def two_backbones_of_one_name_space() -> keras.Model:
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 3), name="b")
    return keras.Model(
        [a, b], layers.Add()([functional_backbone("left")(a), functional_backbone("right")(b)])
    )


def nested_with_two_outputs() -> keras.Model:
    x = keras.Input((8, 8, 3))
    y = block(x, "a")
    inner = keras.Model(x, [y, block(y, "b")], name="inner")
    z = keras.Input((8, 8, 3))
    return keras.Model(z, layers.Add()(inner(z)))


def nested_that_passes_its_input_on() -> keras.Model:
    x = keras.Input((6,))
    inner = keras.Model(x, [x, layers.Dense(6)(x)], name="inner")
    y = keras.Input((6,))
    return keras.Model(y, layers.Dense(2)(layers.Add()(inner(y))))


def dict_inputs_and_outputs() -> keras.Model:
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    y = layers.Concatenate()([layers.Dense(5)(a), layers.Dense(5)(b)])
    return keras.Model(
        {"a": a, "b": b}, {"y": layers.Dense(2, name="y_head")(y), "z": layers.Dense(3)(y)}
    )


def list_outputs_one_inside() -> keras.Model:
    x = keras.Input((6,))
    y = layers.Dense(5, name="hidden")(x)
    return keras.Model(x, [y, layers.Dense(2, name="head")(y)])


def output_that_is_an_input() -> keras.Model:
    x = keras.Input((6,))
    return keras.Model(x, [x, layers.Dense(2)(x)])


def the_same_output_twice() -> keras.Model:
    x = keras.Input((6,))
    y = layers.Dense(2)(x)
    return keras.Model(x, [y, y])


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )


def operations() -> keras.Model:
    x = keras.Input((8, 8, 3))
    y = ops.relu(layers.Conv2D(4, 3, padding="same")(x) * 2.0 + 0.5)
    y = ops.concatenate([y, ops.flip(y, axis=1)], axis=-1)
    y = ops.mean(ops.reshape(y, (-1, 64, 8)), axis=1)
    return keras.Model(x, layers.Dense(2)(y) - ops.expand_dims(y[:, 0], 1))


def lambda_layer() -> keras.Model:
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(2)(layers.Lambda(lambda t: t * 2)(layers.Dense(4)(x))))


def a_function() -> keras.Model:
    x = keras.Input((6,))
    y = layers.Dense(4, activation=lambda t: ops.leaky_relu(t, 0.3))(x)
    return keras.Model(x, layers.Dense(2)(y))


def several_arguments() -> keras.Model:
    query, value = keras.Input((5, 4), name="q"), keras.Input((7, 4), name="v")
    y = layers.MultiHeadAttention(2, 3, name="mha")(query=query, value=value, key=value)
    return keras.Model([query, value], layers.Dense(2)(y))


def embedding_with_a_mask() -> keras.Model:
    x = keras.Input((7,), dtype="int32")
    y = layers.Embedding(5, 4, mask_zero=True)(x)
    return keras.Model(x, layers.Dense(2)(layers.LSTM(6)(layers.Dense(5)(y))))


def unknown_spatial_shape() -> keras.Model:
    x = keras.Input((None, None, 3))
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling2D()(block(x, "a"))))


def time_distributed() -> keras.Model:
    x = keras.Input((4, 8, 8, 3))
    y = layers.TimeDistributed(layers.Conv2D(4, 3))(x)
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(y)))


BUILDERS = [
    shared_layer,
    layer_called_three_times,
    nested_functional,
    nested_in_inference_mode,
    nested_twice,
    nested_sequential,
    siamese,
    two_backbones_of_one_name_space,
    nested_with_two_outputs,
    nested_that_passes_its_input_on,
    dict_inputs_and_outputs,
    list_outputs_one_inside,
    output_that_is_an_input,
    the_same_output_twice,
    sequential,
    operations,
    several_arguments,
    embedding_with_a_mask,
    unknown_spatial_shape,
    time_distributed,
]


@pytest.mark.matrix_except(
    "shared_layer",
    "nested_functional",
    "siamese",
    "dict_inputs_and_outputs",
    "sequential",
    "operations",
    "time_distributed",
)
@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_a_graph(build: Callable[[], keras.Model], tmp_path: Path) -> None:
    keras.utils.set_random_seed(3)
    check(build(), tmp_path)


def test_shared_layer_keeps_one_kernel_and_quantizer() -> None:
    model = shared_layer()
    quantized = quantize_model(model)
    assert len(quantized.trainable_variables) == len(model.trainable_variables) == 2
    assert sorted(model_quantizers(quantized)) == [
        "a_quantizer",
        "b_quantizer",
        "conv_kernel_quantizer",
    ]


def test_siamese_backbone_has_quantizer_for_each_tensor() -> None:
    quantized = quantize_model(siamese())
    names = set(model_quantizers(quantized))
    assert {
        "a_quantizer",
        "b_quantizer",
        "a_conv_kernel_quantizer",
        "b_conv_kernel_quantizer",
    } <= names
    assert {"a_relu_quantizer", "a_relu_call1_quantizer"} <= names


def test_nested_models_keep_equal_layer_names() -> None:
    plan = plan_quantization(two_backbones_of_one_name_space())
    assert {"a_conv", "right_a_conv"} <= set(plan.wrapped)


def test_spec_reaches_layers_of_nested_models() -> None:
    spec = QuantizationSpec().add("a_conv", quantize_input=False, quantize_weight=False)
    plan = plan_quantization(nested_functional(), quantization_spec=spec)
    assert "a_conv" not in plan.wrapped
    assert "b_conv" in plan.wrapped


@pytest.mark.parametrize("training", [None, False])
def test_batch_statistics_move_as_in_the_original(training: bool | None) -> None:
    """Whether ``fit`` keeps ``training=False`` backbones' statistics depends on Keras's version."""
    x = keras.Input((8, 8, 3))
    y = functional_backbone()(x, training=training)
    model = keras.Model(x, layers.Dense(2)(layers.Flatten()(y)))
    quantized = quantize_model(model)
    for quantizer in model_quantizers(quantized).values():
        quantizer.disable()
    moved = []
    for each in (model, quantized):
        each.compile("sgd", "mse")
        each.fit(np.ones((4, 8, 8, 3)), np.zeros((4, 2)), verbose=0)
        moved.append([v.numpy() for v in each.variables if v.name == "moving_mean"])
    for a, b in zip(*moved, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_frozen_layer_stays_frozen() -> None:
    model = sequential()
    model.layers[0].trainable = False
    quantized = quantize_model(model)
    assert len(quantized.trainable_variables) == len(model.trainable_variables) == 2


def test_regularizers_and_constraints_come_along() -> None:
    x = keras.Input((6,))
    dense = layers.Dense(
        2, kernel_regularizer="l2", kernel_constraint="non_neg", activity_regularizer="l1"
    )
    model = keras.Model(x, dense(x))
    quantized = quantize_model(model)
    wrapped = quantized.get_layer(f"quant_{dense.name}").layer
    assert wrapped.kernel.constraint is not None
    x = np.ones((2, 6), np.float32)
    model(x)
    quantized(x)
    assert len(quantized.losses) == len(model.losses) == 2
    for a, b in zip(sorted(model.losses), sorted(quantized.losses), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.2)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_policies(policy: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(3)
    x = keras.Input((8, 8, 3))
    y = layers.Conv2D(4, 3, dtype=policy, name="conv")(x)
    y = layers.BatchNormalization(dtype=policy)(y)
    y = layers.GlobalAveragePooling2D(dtype=policy)(y)
    model = keras.Model(x, layers.Dense(2, dtype="float32")(y))
    quantized = check(model, tmp_path)
    assert quantized.get_layer("quant_conv").compute_dtype == model.get_layer("conv").compute_dtype
    assert (
        quantized.get_layer("quant_conv").layer.kernel.dtype == model.get_layer("conv").kernel.dtype
    )


@pytest.mark.parametrize("build", [lambda_layer, a_function], ids=lambda b: b.__name__)
def test_code_works_in_memory_but_not_saved(
    build: Callable[[], keras.Model], tmp_path: Path
) -> None:
    model = build()
    x = data_for(model)
    quantized = quantize_model(model)
    assert np.abs(quantized(x) - model(x)).max() < 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras's about the lambda
        quantized.save(tmp_path / "model.keras")
    with pytest.raises(UnsupportedModelError, match=r"Lambda|activation function"):
        load_model(tmp_path / "model.keras")


def test_a_mask_reaches_the_layers_behind() -> None:
    model = embedding_with_a_mask()
    quantized = quantize_model(model)
    for quantizer in model_quantizers(quantized).values():
        quantizer.disable()
    x = np.int32([[1, 2, 3, 0, 0, 0, 0]])
    np.testing.assert_array_equal(quantized(x), model(x))


def test_an_unbuilt_sequential_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"not built.*keras\.Input"):
        quantize_model(keras.Sequential([layers.Dense(2)]))


def test_a_subclassed_model_is_refused() -> None:
    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    subclassed = Subclassed()
    with pytest.raises(UnsupportedModelError, match="Build a Functional model"):
        quantize_model(subclassed)
    # What the message says works.
    inputs = keras.Input((6,))
    model = keras.Model(inputs, subclassed.call(inputs))
    assert len(model_quantizers(quantize_model(model))) == 2


def test_subclassed_model_inside_functional_is_one_layer() -> None:
    class Inner(keras.Model):
        def __init__(self, name: str | None = None) -> None:
            super().__init__(name=name)
            self.dense = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return keras.ops.relu(self.dense(x)) * 2

        def get_config(self) -> dict[str, Any]:
            return {"name": self.name}

    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2)(Inner(name="inner")(x)))
    quantized = quantize_model(model)
    assert len(model_quantizers(quantized)) == 4
    data = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
    calibrate(quantized, data)
    np.testing.assert_allclose(quantized(data), model(data), atol=0.05)


def test_a_subclass_of_functional_is_quantized(tmp_path: Path) -> None:
    """``class Net(keras.Model)`` whose constructor hands the graph to Keras."""

    class Net(keras.Model):
        def __init__(self) -> None:
            x = keras.Input((6,))
            super().__init__(x, layers.Dense(2)(x))

    check(Net(), tmp_path)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Expected a keras\.Model. Received: str"):
        quantize_model("model")


class Scale(layers.Layer):
    """A layer without get_config, with a weight of its own."""

    def __init__(self, factor: float, lock: Any = None) -> None:
        super().__init__(name="scale")
        self.factor = factor
        self.lock = lock

    def build(self, input_shape: Any) -> None:
        self.gain = self.add_weight(shape=(input_shape[-1],), initializer="random_normal")

    def call(self, x: Any) -> Any:
        return x * self.factor * self.gain


def test_unconfigured_layer_is_copied_by_arguments() -> None:
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2, name="head")(Scale(2.0)(x)))
    quantized = quantize_model(model)
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for quantizer in model_quantizers(quantized).values():
        quantizer.disable()
    np.testing.assert_array_equal(quantized(data), model(data))
    before = model.get_layer("scale").gain.numpy()
    quantized.get_layer("scale").gain.assign(np.zeros(6))  # the original keeps its own
    np.testing.assert_array_equal(model.get_layer("scale").gain.numpy(), before)


class Widened(layers.Layer):
    """A layer with an argument missing in its configuration.

    The configuration makes another layer.
    """

    def __init__(self, units: int = 3, **options: Any) -> None:
        super().__init__(**options)
        self.units = units

    def get_config(self) -> dict[str, Any]:
        return super().get_config()

    def build(self, input_shape: Any) -> None:
        self.bias = self.add_weight(shape=(self.units,), initializer="random_normal")

    def call(self, x: Any) -> Any:
        return keras.ops.concatenate([x, x[:, :1] * self.bias], axis=-1)


def test_misconfigured_layer_is_copied_by_arguments() -> None:
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2, name="head")(Widened(5, name="wide")(x)))
    quantized = quantize_model(model)
    for quantizer in model_quantizers(quantized).values():
        quantizer.disable()
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_array_equal(quantized(data), model(data))


def test_uncopyable_stateless_layer_is_shared() -> None:
    class Locked(layers.Layer):
        def __init__(self, lock: Any) -> None:
            super().__init__(name="locked")
            self.lock = lock

        def call(self, x: Any) -> Any:
            return x * 2.0

    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2)(Locked(threading.Lock())(x)))
    assert quantize_model(model).get_layer("locked") is model.get_layer("locked")


def test_uncopyable_layer_says_so() -> None:
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(2)(Scale(2.0, lock=threading.Lock())(x)))
    with pytest.raises(UnsupportedModelError, match=r"Scale.*get_config"):
        quantize_model(model)


@pytest.mark.matrix
def test_the_summary_and_the_callbacks_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    quantized = quantize_model(nested_functional())
    quantized.summary()
    assert "quant_a_conv" in capsys.readouterr().out
    quantized.compile("adam", "mse")
    callbacks = [
        keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", save_best_only=True, monitor="loss"
        ),
        keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True, patience=1),
    ]
    quantized.fit(np.ones((4, 8, 8, 3)), np.zeros((4, 2)), epochs=2, verbose=0, callbacks=callbacks)
    assert set(model_quantizers(load_model(tmp_path / "best.keras"))) == set(
        model_quantizers(quantized)
    )
    assert np.isfinite(quantized.evaluate(np.ones((4, 8, 8, 3)), np.zeros((4, 2)), verbose=0))
