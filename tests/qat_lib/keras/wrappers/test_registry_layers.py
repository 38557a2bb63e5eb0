"""Every supported layer class, from plan to one training step.

Plan, apply, off = bit-identical, save, load, clone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow_kernels import require_kernels

from qat_lib import (
    QuantizationSpec,
    calibrate,
    load_model,
    model_quantizers,
    plan_quantization,
    quantize_model,
)
from qat_lib.keras.wrappers import REGISTRY


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer: its call, its inputs and its weight ranges' shapes."""

    layer: Callable[[], Any]
    inputs: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...] = ()
    activations: int = 1
    default: bool = True
    call: Callable[..., Any] | None = None
    integers: bool = False


IMAGE, LINE, VOLUME = (8, 8, 4), (12, 4), (4, 4, 4, 4)


def pool(kind: str, rank: int, **options: Any) -> Case:
    shape = {1: LINE, 2: IMAGE, 3: VOLUME}[rank]
    if not kind.startswith(("Global", "Adaptive")):
        options["pool_size"] = 2
    return Case(
        layer=lambda: getattr(layers, f"{kind}Pooling{rank}D")(**options),
        inputs=(shape,),
        default="Average" in kind,
    )


def merge(name: str, **options: Any) -> Case:
    groups = 1 if name == "Concatenate" else 2
    return Case(
        layer=lambda: getattr(layers, name)(**options),
        inputs=(IMAGE, IMAGE),
        activations=groups,
        default=False,
    )


def off(layer: Callable[[], Any], shape: tuple[int, ...], **options: Any) -> Case:
    return Case(layer=layer, inputs=(shape,), default=False, **options)


def on(
    layer: Callable[[], Any], shape: tuple[int, ...], *weights: tuple[int, ...], **options: Any
) -> Case:
    return Case(layer=layer, inputs=(shape,), weights=weights, **options)


def attention(**options: Any) -> Callable[[], Any]:
    return lambda: layers.MultiHeadAttention(num_heads=2, key_dim=3, **options)


HEADS = ((1, 2, 3), (1, 2, 3), (1, 2, 3), (1, 1, 4))

CASES = {
    "Conv1D": on(lambda: layers.Conv1D(5, 3, activation="relu"), LINE, (1, 1, 5)),
    "Conv1D causal": on(
        lambda: layers.Conv1D(5, 3, padding="causal", dilation_rate=2), LINE, (1, 1, 5)
    ),
    "Conv2D": on(lambda: layers.Conv2D(5, 3), IMAGE, (1, 1, 1, 5)),
    "Conv2D strides, no bias": on(
        lambda: layers.Conv2D(5, 3, strides=2, padding="same", use_bias=False), IMAGE, (1, 1, 1, 5)
    ),
    "Conv2D groups": on(lambda: layers.Conv2D(6, 3, groups=2), IMAGE, (1, 1, 1, 6)),
    "Conv2D dilation": on(lambda: layers.Conv2D(5, 3, dilation_rate=2), IMAGE, (1, 1, 1, 5)),
    "Conv2D channels_first": on(
        lambda: layers.Conv2D(5, 3, data_format="channels_first"), (4, 8, 8), (1, 1, 1, 5)
    ),
    "Conv3D": on(lambda: layers.Conv3D(3, 2), VOLUME, (1, 1, 1, 1, 3)),
    "Conv1DTranspose": off(
        lambda: layers.Conv1DTranspose(5, 3, strides=2), LINE, weights=((1, 5, 1),)
    ),
    "Conv2DTranspose": off(
        lambda: layers.Conv2DTranspose(5, 3, strides=2), IMAGE, weights=((1, 1, 5, 1),)
    ),
    "Conv3DTranspose": off(
        lambda: layers.Conv3DTranspose(3, 2), VOLUME, weights=((1, 1, 1, 3, 1),)
    ),
    "DepthwiseConv1D": on(lambda: layers.DepthwiseConv1D(3, depth_multiplier=2), LINE, (1, 4, 2)),
    "DepthwiseConv2D": on(lambda: layers.DepthwiseConv2D(3), IMAGE, (1, 1, 4, 1)),
    "DepthwiseConv2D multiplier": on(
        lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), IMAGE, (1, 1, 4, 2)
    ),
    "DepthwiseConv2D strides": on(
        lambda: layers.DepthwiseConv2D(3, strides=2, padding="same"), IMAGE, (1, 1, 4, 1)
    ),
    "SeparableConv1D": on(
        lambda: layers.SeparableConv1D(5, 3), LINE, (1, 4, 1), (1, 1, 5), activations=2
    ),
    "SeparableConv2D": on(
        lambda: layers.SeparableConv2D(5, 3), IMAGE, (1, 1, 4, 1), (1, 1, 1, 5), activations=2
    ),
    "SeparableConv2D multiplier": on(
        lambda: layers.SeparableConv2D(
            5, 3, depth_multiplier=2, strides=2, padding="same", activation="relu"
        ),
        IMAGE,
        (1, 1, 4, 2),
        (1, 1, 1, 5),
        activations=2,
    ),
    "Dense": on(lambda: layers.Dense(5, activation="tanh"), (7,), (1, 5)),
    "Dense on a sequence": on(lambda: layers.Dense(5, use_bias=False), LINE, (1, 5)),
    "EinsumDense": on(
        lambda: layers.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d"), LINE, (1, 5)
    ),
    "EinsumDense heads": on(
        lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 3)), LINE, (1, 2, 3)
    ),
    "EinsumDense transposed": on(
        lambda: layers.EinsumDense("abc,dc->abd", (None, 5)), LINE, (5, 1)
    ),
    "EinsumDense ellipsis": on(lambda: layers.EinsumDense("...x,xy->...y", 5), LINE, (1, 5)),
    "MultiHeadAttention": Case(
        layer=attention(), inputs=(LINE, LINE), weights=HEADS, activations=3
    ),
    "MultiHeadAttention of itself": Case(
        layer=attention(use_bias=False),
        inputs=(LINE,),
        weights=HEADS,
        activations=2,
        call=lambda a, x: a(x, x),
    ),
    "MultiHeadAttention with a key": Case(
        layer=attention(dropout=0.1),
        inputs=(LINE, LINE, LINE),
        weights=HEADS,
        activations=4,
        call=lambda a, q, v, k: a(q, v, key=k, use_causal_mask=True),
    ),
    "Embedding": off(
        lambda: layers.Embedding(9, 4), (6,), weights=((),), activations=0, integers=True
    ),
    **{f"AveragePooling{r}D": pool("Average", r) for r in (1, 2, 3)},
    **{f"GlobalAveragePooling{r}D": pool("GlobalAverage", r) for r in (1, 2, 3)},
    **{f"MaxPooling{r}D": pool("Max", r) for r in (1, 2, 3)},
    **{f"GlobalMaxPooling{r}D": pool("GlobalMax", r) for r in (1, 2, 3)},
    **{f"AdaptiveAveragePooling{r}D": pool("AdaptiveAverage", r, output_size=2) for r in (1, 2, 3)},
    **{f"AdaptiveMaxPooling{r}D": pool("AdaptiveMax", r, output_size=2) for r in (1, 2, 3)},
    "AveragePooling2D channels_first": on(
        lambda: layers.AveragePooling2D(2, data_format="channels_first"), (4, 8, 8)
    ),
    **{
        name: merge(name)
        for name in ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate")
    },
    "UpSampling1D": off(lambda: layers.UpSampling1D(2), LINE),
    "UpSampling2D": off(lambda: layers.UpSampling2D(2, interpolation="bilinear"), IMAGE),
    "UpSampling3D": off(lambda: layers.UpSampling3D(2), VOLUME),
    "ZeroPadding1D": off(lambda: layers.ZeroPadding1D(1), LINE),
    "ZeroPadding2D": off(lambda: layers.ZeroPadding2D(1), IMAGE),
    "ZeroPadding3D": off(lambda: layers.ZeroPadding3D(1), VOLUME),
    "Resizing": off(lambda: layers.Resizing(5, 6), IMAGE),
    "LayerNormalization": off(lambda: layers.LayerNormalization(), LINE),
    "GroupNormalization": off(lambda: layers.GroupNormalization(groups=2), IMAGE),
    "BatchNormalization": off(lambda: layers.BatchNormalization(), IMAGE),
    "BatchNormalization axis": off(lambda: layers.BatchNormalization(axis=1), (4, 8, 8)),
    "Activation": off(lambda: layers.Activation("gelu"), IMAGE),
    "ReLU": off(lambda: layers.ReLU(max_value=1.0), IMAGE),
}


def make(case: Case) -> tuple[keras.Model, list[np.ndarray]]:
    """Return a model around the layer with changed weights, and data.

    No weight is what it starts as.
    """
    keras.utils.set_random_seed(1)
    dtype = "int32" if case.integers else "float32"
    inputs = [keras.Input(shape, name=f"x{i}", dtype=dtype) for i, shape in enumerate(case.inputs)]
    layer = case.layer()
    if case.call is not None:
        output = case.call(layer, *inputs)
    elif layer.__class__.__name__ == "MultiHeadAttention":
        output = layer(*inputs)
    else:
        output = layer(inputs if len(inputs) > 1 else inputs[0])
    model = keras.Model(inputs if len(inputs) > 1 else inputs[0], output, name="model")
    generator = np.random.default_rng(2)
    for variable in layer.weights:
        if "float" in variable.dtype:
            variable.assign(
                generator.uniform(0.3, 1, variable.shape)
                * generator.choice([-1, 1], variable.shape)
            )
            if "variance" in variable.name:
                variable.assign(np.abs(variable))
    shapes = [(3, *shape) for shape in case.inputs]
    if case.integers:
        return model, [generator.integers(0, 9, shape) for shape in shapes]
    return model, [generator.standard_normal(shape).astype(np.float32) for shape in shapes]


def run(model: keras.Model, data: list[np.ndarray], training: bool = False) -> Any:
    return model(data if len(data) > 1 else data[0], training=training)


@pytest.mark.parametrize("name", CASES)
def test_a_layer(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, data = make(case)
    layer = model.layers[-1]
    spec = (
        None if case.default else QuantizationSpec().add(type(layer).__name__, is_keras_class=True)
    )
    if not case.default:
        assert not plan_quantization(model).quantizers
    before = [w.copy() for w in model.get_weights()]
    require_kernels(model, *data)
    expected = run(model, data).numpy()

    plan = plan_quantization(model, quantization_spec=spec)
    quantized = quantize_model(model, quantization_spec=spec)
    quantizers = model_quantizers(quantized)
    assert set(quantizers) == {entry.name for entry in plan.quantizers}
    assert quantized.layers[-2].name == f"quant_{layer.name}"
    ranges = [q.amax.shape for q in quantizers.values() if q.range_policy == "current"]
    assert sorted(ranges) == sorted(case.weights)
    assert len(quantizers) - len(ranges) == case.activations

    calibrate(quantized, [(data if len(data) > 1 else data[0],)], method="max")
    received = run(quantized, data).numpy()
    assert np.abs(received - expected).max() <= 0.06 * np.abs(expected).max()
    assert not np.array_equal(received, expected)

    quantized.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(run(loaded, data), received)
    copy = keras.models.clone_model(quantized)
    copy.set_weights(quantized.get_weights())
    np.testing.assert_array_equal(run(copy, data), received)

    check_training_step(quantized, data)
    for quantizer in quantizers.values():
        quantizer.disable()
    quantized.set_weights(restored(quantized, model, before))
    np.testing.assert_array_equal(run(quantized, data), expected)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def restored(
    quantized: keras.Model, model: keras.Model, weights: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the quantized model's weights with the original's values.

    The step moved the batch statistics.
    """
    by_shape = {v.path.rpartition("/")[2]: w for v, w in zip(model.weights, weights, strict=True)}
    moving = ("moving_mean", "moving_variance")
    return [by_shape[v.name] if v.name in moving else v.numpy() for v in quantized.weights]


def check_training_step(model: keras.Model, data: list[np.ndarray]) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(run(model, data, training=True) - 0.1))
    assert np.isfinite(loss)
    variables = [v.value for v in model.trainable_variables]
    gradients = tape.gradient(loss, variables)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        assert gradient is not None, variable.path
        assert np.all(np.isfinite(tf.convert_to_tensor(gradient))), variable.path


def test_the_matrix_covers_every_wrapper() -> None:
    covered = {type(case.layer()).__name__ for case in CASES.values()}
    assert covered >= {name for name in REGISTRY.class_names() if hasattr(layers, name)}


def test_a_step_changes_only_what_trains() -> None:
    """``fit`` moves the kernels and the biases, and never the switches."""
    model, (data,) = make(CASES["Conv2D"])
    quantized = quantize_model(model)
    quantized.compile("sgd", "mse")
    flags = [v.numpy().tolist() for v in quantized.variables if v.name == "flags"]
    quantized.fit(data, np.zeros((3, 6, 6, 5)), verbose=0)
    assert [v.numpy().tolist()[:2] for v in quantized.variables if v.name == "flags"] == [
        f[:2] for f in flags
    ]
    assert not np.array_equal(
        quantized.layers[-2].layer.get_weights()[0], model.layers[-1].get_weights()[0]
    )


def test_registry_says_how_to_support_a_class() -> None:
    assert REGISTRY.noun == "wrapper"
    assert REGISTRY.remedy("Scale") == "define ScaleQuantizeWrapper"
    assert "a class named ScaleQuantizeWrapper that derives from" in REGISTRY.advice("Scale")
