"""Models that went through Keras's own ``quantize``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from keras import layers

import qat_lib
from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.graph.existing_quantizers import existing_quantizers


def keras_quantized() -> keras.Model:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4, name="dense"), layers.ReLU()])
    model.get_layer("dense").quantize("int8")
    return model


@pytest.mark.matrix
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


def test_per_channel_quantizer_quantizes_no_whole_tensor() -> None:
    whole = existing_quantizers(qat_lib.TensorQuantizer(), 1)
    assert whole is not None
    assert whole.inputs == (0,)
    by_channel = existing_quantizers(qat_lib.TensorQuantizer(channel_axes=(-1,)), 1)
    assert by_channel is not None
    assert by_channel.inputs == ()
    assert by_channel.quantizer is not None


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, (0, 1)), ({"quantization_index": [1]}, (1,)), ({"quantize_inputs": False}, ())],
)
def test_wrapper_quantizes_its_chosen_inputs(
    options: dict[str, Any], expected: tuple[int, ...]
) -> None:
    found = existing_quantizers(qat_lib.AddQuantizeWrapper(layers.Add(), **options), 2)
    assert found is not None
    assert (found.inputs, found.weights, found.quantizer) == (expected, False, None)


def test_a_plain_layer_has_no_quantizers() -> None:
    assert existing_quantizers(layers.Add(), 2) is None
