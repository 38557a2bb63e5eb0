"""Weights that are quantized once for many forward passes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.errors import SpecError

L = keras.layers
X = np.random.default_rng(0).normal(0.0, 1.0, (6, 8, 8, 3)).astype(np.float32)


def network() -> Any:
    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((8, 8, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, name="conv")(x)))
    x = L.SeparableConv2D(8, 3, name="separable")(x)
    x = L.Dense(4, name="head")(L.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x)


def quantized(model: Any = None, **options: Any) -> Any:
    model = qat_lib.quantize_model(network() if model is None else model, **options)
    qat_lib.calibrate(model, [X])
    return model


def weights_of(model: Any) -> dict[str, Any]:
    """Return the weights with a quantizer by its name."""
    found = {}
    for name, quantizer in qat_lib.model_quantizers(model).items():
        if quantizer.of_weight:
            found[name] = quantizer
    return found


def values(model: Any) -> list[np.ndarray]:
    return [np.array(weight) for weight in model.get_weights()]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_compiled_outputs_stay_the_same_bit_for_bit() -> None:
    model = quantized()
    compiled = tf.function(lambda x: model(x, training=False))
    expected = [model(X).numpy(), compiled(X).numpy(), model.predict(X, verbose=0)]
    with qat_lib.folded_weights(model):
        found = [model(X).numpy(), compiled(X).numpy(), model.predict(X, verbose=0)]
    assert_same(found, expected)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_outputs_stay_the_same_in_half_precision(policy: str) -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = quantized()
    finally:
        keras.config.set_dtype_policy(before)
    expected = np.array(keras.ops.cast(model(X), "float32"))
    with qat_lib.folded_weights(model):
        np.testing.assert_array_equal(np.array(keras.ops.cast(model(X), "float32")), expected)


def test_the_variables_hold_the_integers_multiples_within_the_block_alone() -> None:
    model = quantized()
    before, quantizers = values(model), weights_of(model)
    assert len(quantizers) == 4
    scales = {name: quantizer.scale for name, quantizer in quantizers.items()}
    with qat_lib.folded_weights(model):
        for name, quantizer in quantizers.items():
            assert not quantizer.enabled
            ratio = np.array(quantizer.weight) / scales[name]
            np.testing.assert_allclose(ratio, np.rint(ratio), atol=1e-4)
            assert np.unique(np.rint(ratio)).size > 20
    assert_same(values(model), before)
    assert all(quantizer.enabled for quantizer in quantizers.values())


def test_blocks_may_be_nested() -> None:
    model = quantized()
    before, expected = values(model), model(X).numpy()
    with qat_lib.folded_weights(model):
        with qat_lib.folded_weights(model):
            np.testing.assert_array_equal(model(X).numpy(), expected)
        np.testing.assert_array_equal(model(X).numpy(), expected)
        assert not any(quantizer.enabled for quantizer in weights_of(model).values())
    assert_same(values(model), before)


@keras.saving.register_keras_serializable("test_folding")
class TiedHead(L.Layer):
    """Reads another layer's weight, in float."""

    def __init__(self, embedding: Any, **options: Any) -> None:
        super().__init__(**options)
        self.table = embedding.embeddings

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(self.table))


def test_a_weight_of_two_layers_stays_as_it_is() -> None:
    embedding = L.Embedding(11, 6, name="embedding")
    embedding.build((None, 5))
    wrapped = qat_lib.EmbeddingQuantizeWrapper(embedding)
    inputs = keras.Input((5,), dtype="int32")
    model = keras.Model(inputs, TiedHead(embedding)(wrapped(inputs)))
    (quantizer,) = weights_of(model).values()
    ids = np.arange(10).reshape(2, 5)
    expected, before = model(ids).numpy(), np.array(embedding.embeddings)
    with qat_lib.folded_weights(model):
        np.testing.assert_array_equal(np.array(embedding.embeddings), before)
        np.testing.assert_array_equal(model(ids).numpy(), expected)
    assert quantizer.enabled


@pytest.mark.parametrize("policy", ["current", "frozen", "learned"])
def test_weights_of_composites_fold_whatever_their_range_follows(policy: str) -> None:
    x = inputs = keras.Input((6, 8))
    x = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    float_model = keras.Model(inputs, L.Dense(3, name="head")(x))
    spec = qat_lib.QuantizationSpec()
    spec.add(name=["attention", "head"], weight_range_policy=policy)
    model = qat_lib.quantize_model(float_model, quantization_spec=spec)
    assert {quantizer.range_policy for quantizer in weights_of(model).values()} == {policy}
    data = X.reshape(-1, 6, 8)
    qat_lib.calibrate(model, [data])
    expected = model(data).numpy()
    with qat_lib.folded_weights(model):
        assert not any(quantizer.enabled for quantizer in weights_of(model).values())
        np.testing.assert_array_equal(model(data).numpy(), expected)


def test_folded_quantizers_compute_nothing_of_their_weights() -> None:
    model = quantized()
    run = tf.function(lambda x: model(x, training=False)).get_concrete_function(X)
    ops = [op for f in run.graph._functions.values() for op in f.graph.get_operations()]
    reductions = [op for op in ops if op.type in ("Max", "Min")]
    assert reductions
    for op in reductions:
        assert is_switched(op)


def is_switched(op: Any) -> bool:
    """Whether an op runs only where a Switch lets it."""
    return any(each.op.type == "Switch" or is_switched(each.op) for each in op.inputs)


def test_a_float_model_is_left_alone() -> None:
    model = network()
    before = values(model)
    with qat_lib.folded_weights(model):
        assert_same(values(model), before)


def test_a_traced_call_is_refused() -> None:
    model = quantized()

    @tf.function(autograph=False)
    def traced() -> None:
        with qat_lib.folded_weights(model):
            pass

    with pytest.raises(SpecError, match=r"outside of tf\.function"):
        traced()
