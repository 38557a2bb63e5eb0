"""A model as a function of flat inputs."""

from __future__ import annotations

import keras
import numpy as np
from planted_faults import images, network, quantized

import qat_lib
from qat_lib.keras.search.candidates import compile_forward
from qat_lib.keras.structure import pack_inputs


def test_compile_forward_takes_any_batch_and_follows_switches() -> None:
    model = quantized(network())
    run = compile_forward(model)
    for size in (1, 5):
        (found,) = run(keras.ops.convert_to_tensor(images(size)))
        np.testing.assert_allclose(found, model(images(size)), rtol=1e-4, atol=1e-6)
    before = np.asarray(run(keras.ops.convert_to_tensor(images()))[0])
    for quantizer in qat_lib.model_quantizers(model).values():
        quantizer.disable()
    after = np.asarray(run(keras.ops.convert_to_tensor(images()))[0])
    assert np.abs(after - before).max() > 0


def test_pack_inputs_keeps_names_and_lists() -> None:
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    y = keras.layers.Subtract()([a, b])
    one, two = np.ones((3, 2), np.float32), np.full((3, 2), 3, np.float32)
    for inputs in ({"b": b, "a": a}, [a, b], (b, a)):
        model = keras.Model(inputs, y)
        parts = [one if tensor.name == "a" else two for tensor in model.inputs]
        packed = pack_inputs(model, parts)
        assert type(packed) is type(inputs)
        (found,) = compile_forward(model)(*map(keras.ops.convert_to_tensor, parts))
        np.testing.assert_array_equal(found, one - two)
