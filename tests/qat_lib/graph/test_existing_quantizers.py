"""Models that went through Keras's own ``quantize``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from keras import layers

import qat_lib
from qat_lib.errors import UnsupportedModelError


def keras_quantized() -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4, name="dense"), layers.ReLU()])
    model.get_layer("dense").quantize("int8")
    return model


@pytest.mark.parametrize(
    "use",
    [
        qat_lib.quantize_model,
        qat_lib.plan_quantization,
        lambda m: qat_lib.export_onnx(m, Path("never.onnx")),
    ],
)
def test_model_that_keras_quantized_is_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'dense' holds integers.*before that call"):
        use(keras_quantized())
    assert not Path("never.onnx").exists()
