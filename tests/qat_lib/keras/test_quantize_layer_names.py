"""Layers whose names look like those that quantization gives."""

import itertools

import keras
import pytest
from keras import layers

from qat_lib import model_quantizers, quantize_model
from qat_lib.errors import UnsupportedModelError

NAMES = ("conv", "quant_conv", "conv_quantizer", "conv_kernel")


def chain(names: tuple[str, ...]) -> keras.Model:
    tensor = image = keras.Input((4, 4, 2), name="image")
    for name in names:
        tensor = layers.Conv2D(2, 3, padding="same", name=name)(tensor)
    return keras.Model(image, tensor)


@pytest.mark.matrix_except("names0", "names11", "names23")
@pytest.mark.parametrize("names", list(itertools.permutations(NAMES, 3)))
def test_layers_named_like_quantizers_do_not_clash(names: tuple[str, ...]) -> None:
    quantized = quantize_model(chain(names))
    assert {f"quant_{name}" for name in names} <= {layer.name for layer in quantized.layers}
    assert len(model_quantizers(quantized)) == 2 * len(names)


def test_names_that_tensorflow_refuses_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'my conv'\. Rename the layer"):
        quantize_model(chain(("my conv", "conv")))


def test_wrapper_name_gets_number_if_taken() -> None:
    image = keras.Input((4, 4, 2))
    tensor = layers.ReLU(name="quant_conv")(layers.Conv2D(2, 3, name="conv")(image))
    quantized = quantize_model(keras.Model(image, layers.Conv2D(2, 1, name="last")(tensor)))
    assert {"quant_conv", "quant_conv_1", "quant_last"} <= {
        layer.name for layer in quantized.layers
    }
    assert quantized.get_layer("quant_conv_1").layer.name == "conv"
