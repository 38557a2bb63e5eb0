"""Traits of Keras layers: table roles, corrected by the configuration."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import layers, ops

import qat_lib
from qat_lib.graph.roles import Role
from qat_lib.graph.traits import Traits
from qat_lib.keras.graph.keras_traits import traits_of, unwrapped


def traits_in_model(call: Any, shape: tuple[int, ...] = (8, 8, 4)) -> Traits:
    """Return the traits of the last call of a model."""
    x = keras.Input(shape)
    graph = qat_lib.LayerGraph(keras.Model(x, call(x)))
    return graph.producer(graph.outputs[0]).traits


@pytest.mark.parametrize(
    ("layer", "role", "holds"),
    [
        (layers.Dropout(0.5), "identity", True),
        (layers.Activation("linear"), "identity", True),
        (layers.Activation("relu"), "identity", False),
        (layers.ReLU(), "range preserving", True),
        (layers.ReLU(max_value=6.0), "range preserving", False),
        (layers.UpSampling2D(interpolation="nearest"), "range preserving", True),
        (layers.UpSampling2D(interpolation="bilinear"), "range preserving", False),
        (layers.UpSampling2D(interpolation="bilinear"), "sign preserving", True),
        (layers.UpSampling2D(interpolation="bicubic"), "sign preserving", False),
        (layers.MaxPooling2D(4), "wide maximum", True),
        (layers.MaxPooling2D(2), "wide maximum", False),
        (layers.GlobalMaxPooling2D(), "wide maximum", True),
        (layers.ReLU(negative_slope=0.1), "non-negative", False),
        (layers.Softmax(), "non-negative", True),
        (layers.Conv2D(4, 3, groups=4), "depthwise", True),
        (layers.Conv2D(8, 3, groups=4), "depthwise", False),
        (layers.GroupNormalization(4), "depthwise", False),
        (layers.DepthwiseConv2D(3), "depthwise", True),
        (layers.Rescaling(0.5), "affine", True),
        (layers.PReLU(), "activation layer", True),
        (layers.MultiHeadAttention(1, 2), "attention", True),
    ],
)
def test_roles_follow_the_configuration(layer: Any, role: Role, holds: bool) -> None:
    assert (role in traits_of(layer, 1).roles) == holds


def test_bare_operation_roles_depend_on_inputs() -> None:
    scaled = traits_in_model(lambda x: x * 2.0)
    assert (scaled.kind, "affine" in scaled.roles, scaled.is_layer) == ("Multiply", True, False)
    product = traits_in_model(lambda x: x * ops.sigmoid(x))
    assert (product.kind, "affine" in product.roles) == ("Multiply", False)
    assert "activation layer" not in traits_in_model(ops.relu6).roles


@pytest.mark.parametrize(
    ("operation", "activation", "own"),
    [
        (layers.ReLU(max_value=6.0), "relu6", None),
        (layers.ReLU(negative_slope=0.1), "leaky_relu", None),
        (layers.ReLU(max_value=6.0, negative_slope=0.1), None, None),
        (layers.Activation("silu"), "silu", None),
        (layers.LeakyReLU(), "leaky_relu", None),
        (layers.Dense(2, activation="gelu"), None, "gelu"),
        (layers.Dense(2), None, None),
        (layers.Dense(2, activation=layers.LeakyReLU()), None, "LeakyReLU"),
        (layers.LSTM(2), None, None),
    ],
)
def test_activations(operation: Any, activation: str | None, own: str | None) -> None:
    found = traits_of(operation, 1)
    assert (found.activation, found.own_activation) == (activation, own)


def test_kind_is_the_nearest_class_in_table() -> None:
    class Mine(layers.Add):
        pass

    class Add(layers.Layer):
        pass

    assert traits_of(Mine(), 2).kind == "Add"
    assert traits_of(Mine(), 2).class_name == "Mine"
    assert traits_of(Add(), 2).kind == ""
    assert layers.Add in traits_of(Mine(), 2).classes


def test_support_is_that_of_the_wrapper() -> None:
    support = traits_of(layers.Conv2D(4, 3), 1).support
    assert support is not None
    assert (support.quantize_input, support.quantize_weight) == (True, True)
    assert support.plan_weights() == {"kernel": (-1,)}
    pool = traits_of(layers.MaxPooling2D(), 1)
    assert pool.support is not None
    assert (pool.support.quantize_input, pool.weights()) == (False, {})
    assert traits_of(layers.SeparableConv2D(4, 3), 1).support.internal == ("depthwise",)  # type: ignore[union-attr]
    assert traits_of(layers.LSTM(2), 1).support is None


def test_weighted_layers_inside_are_named() -> None:
    inner = layers.Dense(2, name="inner")
    assert traits_of(layers.TimeDistributed(inner), 1).inside == ("inner",)
    assert traits_of(layers.Flatten(), 1).inside == ()


def test_wrapper_has_traits_of_its_layer() -> None:
    wrapper = qat_lib.Conv2DQuantizeWrapper(layers.Conv2D(4, 3, groups=4))
    wrapper.build((None, 8, 8, 4))
    found = traits_of(wrapper, 1)
    assert unwrapped(wrapper) is wrapper.layer
    assert (found.kind, found.class_name) == ("Conv2D", "Conv2DQuantizeWrapper")
    assert {"weighted", "depthwise"} <= found.roles
    assert found.is_wrapped
    assert found.quantized_inputs == (0,)
    assert found.existing is not None
    assert found.existing.weights


def test_inputs_are_known_as_such() -> None:
    x = keras.Input((2,))
    graph = qat_lib.LayerGraph(keras.Model(x, layers.ReLU()(x)))
    assert [call.traits.is_input for call in graph.calls] == [True, False]
    assert [call.is_input for call in graph.calls] == [True, False]
