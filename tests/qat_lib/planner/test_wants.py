"""Where the quantizer of a padded tensor sits."""

import keras
import pytest
from keras import layers

import qat_lib


def roots(reader, pad=None, *, also_output=False):
    """Return the quantized activations of a network whose padded tensor ``reader`` reads."""
    x = keras.Input((8, 8, 4), name="image")
    y = layers.Conv2D(4, 3, padding="same", name="first")(x)
    padded = (pad or layers.ZeroPadding2D(1, name="pad"))(y)
    z = reader(padded)
    outputs = [z, padded] if also_output else z
    plan = qat_lib.plan_quantization(keras.Model(x, outputs), custom_qdq_cases="auto")
    return {entry.tensor for entry in plan.quantizers if entry.kind == "activation"}


@pytest.mark.parametrize(
    "reader",
    [
        layers.Conv2D(4, 3, name="reader"),
        layers.DepthwiseConv2D(3, strides=2, name="reader"),
        layers.SeparableConv2D(4, 3, name="reader"),
    ],
)
def test_wants_quantize_before_the_padding_of_a_convolution(reader):
    assert roots(reader) == {"image:0", "first:0"}


def test_wants_quantize_behind_other_padding():
    assert roots(layers.Dense(4, name="reader")) == {"image:0", "pad:0"}
    assert roots(layers.Conv2D(4, 3), also_output=True) == {"image:0", "pad:0"}
    assert roots(layers.Conv2D(4, 3), pad=layers.UpSampling2D(name="up")) == {"image:0", "up:0"}


def test_wants_one_quantizer_for_a_tensor_and_its_padding():
    x = keras.Input((8, 8, 4), name="image")
    y = layers.Conv2D(4, 3, padding="same", name="first")(x)
    one = layers.Conv2D(4, 3, name="one")(layers.ZeroPadding2D(1, name="pad")(y))
    two = layers.Conv2D(4, 1, name="two")(y)
    model = keras.Model(x, [one, two])
    plan = qat_lib.plan_quantization(model, custom_qdq_cases="auto")
    (entry,) = (e for e in plan.quantizers if e.tensor == "first:0")
    assert {consumer.layer for consumer in entry.consumers} == {"pad", "two"}
