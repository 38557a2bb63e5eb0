"""Where the quantizers of padded and split tensors sit."""

import keras
import numpy as np
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


def split_network(*, joined: bool = True, float_part: bool = False):
    x = keras.Input((8, 8, 4), name="image")
    y = layers.Conv2D(8, 3, activation="relu", name="stem")(x)
    left, right = keras.ops.split(y, 2, axis=-1)
    inner = layers.Conv2D(4, 1, name="inner")(right)
    z = layers.Concatenate(name="join")([left, right, inner] if joined else [left, inner])
    outputs = [layers.Conv2D(4, 1, name="head")(z)]
    if float_part:
        outputs.append(right)
    return keras.Model(x, outputs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["stem"]),
        # Without the tie by one Concatenate, the parts may have different ranges.
        ({"joined": False}, ["split", "split"]),
        ({"float_part": True}, ["split", "split"]),
    ],
)
def test_wants_quantize_before_a_split_that_is_joined_again(options, expected):
    plan = qat_lib.plan_quantization(split_network(**options), custom_qdq_cases="auto")
    layers_of = [e.tensor.partition(":")[0] for e in plan.quantizers if e.kind == "activation"]
    found = [name.rstrip("_0123456789") for name in layers_of]  # Keras numbers operations
    assert [name for name in found if name in ("stem", "split")] == expected


def test_quantizer_before_a_split_reaches_both_parts(tmp_path):
    model = split_network()
    images = np.random.default_rng(0).normal(size=(16, 8, 8, 4)).astype("float32")
    quantized = qat_lib.quantize_model(model, custom_qdq_cases="auto")
    qat_lib.calibrate(quantized, images)
    error = quantized.predict(images, verbose=0) - model.predict(images, verbose=0)
    assert 0 < np.abs(error).mean() < 0.02
    qat_lib.export_onnx(quantized, tmp_path / "m.onnx")
    assert qat_lib.check_parity(quantized, tmp_path / "m.onnx", images).passed
