"""Recurrent layers as operators, against Keras in ONNX Runtime."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from keras import layers

from qat_lib.keras.export.convert import convert

UNITS, STEPS, FEATURES = 3, 7, 4
KINDS = {"LSTM": layers.LSTM, "GRU": layers.GRU, "RNN": layers.SimpleRNN}
RANDOM = np.random.default_rng(0)
VALUES = RANDOM.normal(size=(5, STEPS, FEATURES)).astype(np.float32)
MASK = RANDOM.random((5, STEPS)) < 0.5
MASK[0], MASK[1, :3], MASK[2, 3:] = False, False, False


def check(
    layer: Callable[..., Any], *, masked: bool = False, steps: int | None = STEPS
) -> set[str]:
    """Require that the graph of a layer gives what the layer gives; return its operators."""
    x = keras.Input((steps, FEATURES), name="x")
    mask = keras.Input((steps,), name="mask", dtype="bool")
    model = keras.Model([x, mask], layer(x, mask=mask) if masked else layer(x))
    for weight in model.trainable_weights:
        weight.assign(RANDOM.normal(0, 0.6, weight.shape))
    graph = convert(model, opset=17)
    session = onnxruntime.InferenceSession(ir.to_proto(graph).SerializeToString())
    feeds = {"x": VALUES, "mask": MASK}
    names = {value.name for value in session.get_inputs()}
    found = session.run(None, {name: feed for name, feed in feeds.items() if name in names})
    expected = keras.tree.flatten(model([VALUES, MASK], training=False))
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-4, atol=1e-5)
    return {node.op_type for node in graph.graph} & {"LSTM", "GRU", "RNN", "Loop"}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_layer_is_one_operator(kind: str, sequences: bool, backwards: bool, masked: bool) -> None:
    layer = KINDS[kind](UNITS, return_sequences=sequences, go_backwards=backwards)
    assert check(layer, masked=masked) == {kind}


@pytest.mark.parametrize("kind", KINDS)
def test_bidirectional_layer_is_two_operators(kind: str) -> None:
    layer = layers.Bidirectional(KINDS[kind](UNITS, return_sequences=True))
    assert check(layer, masked=True) == {kind}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_any_length(kind: str, masked: bool) -> None:
    assert check(KINDS[kind](UNITS, return_sequences=True), masked=masked, steps=None) == {kind}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_initial_states(kind: str, masked: bool) -> None:
    def layer(x: Any, **mask: Any) -> Any:
        states = [layers.Dense(UNITS)(x[:, i]) for i in range(2 if kind == "LSTM" else 1)]
        return KINDS[kind](UNITS, return_sequences=True)(x, initial_state=states, **mask)

    assert check(layer, masked=masked) == {kind}


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_initial_states_that_are_constants(value: float) -> None:
    state = np.full((5, UNITS), value, np.float32)
    layer = layers.GRU(UNITS)
    assert check(lambda x: layer(x, initial_state=keras.ops.convert_to_tensor(state))) == {"GRU"}


@pytest.mark.parametrize(
    "layer",
    [
        layers.LSTM(UNITS, return_state=True),
        layers.LSTM(UNITS, use_bias=False),
        layers.LSTM(UNITS, activation="relu", recurrent_activation="tanh"),
        layers.GRU(UNITS, reset_after=False),
        layers.GRU(UNITS, reset_after=False, use_bias=False),
        layers.SimpleRNN(UNITS, activation="relu"),
        layers.RNN(layers.GRUCell(UNITS), return_sequences=True),
    ],
    ids=["states", "no bias", "activations", "reset before", "without", "relu", "cell"],
)
def test_layers_with_other_settings(layer: Any) -> None:
    (operator,) = check(layer)
    assert operator != "Loop"


def test_masked_outputs_may_be_zero() -> None:
    cell = layers.LSTMCell(UNITS)
    layer = layers.RNN(cell, return_sequences=True, zero_output_for_mask=True)
    assert check(layer, masked=True) == {"LSTM"}


class Doubling(layers.LSTMCell):
    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        output, states = super().call(inputs, states, training=training)
        return 2 * output, states


@pytest.mark.parametrize(
    ("layer", "masked"),
    [
        (layers.GRU(UNITS, activation="elu"), False),
        (layers.RNN(Doubling(UNITS)), False),
        (layers.LSTM(UNITS, return_state=True), True),
        (layers.RNN([layers.GRUCell(UNITS), layers.LSTMCell(UNITS)]), False),
    ],
    ids=["activation", "cell of the user", "states of a masked sequence", "stacked cells"],
)
def test_other_layers_keep_their_loop(layer: Any, masked: bool) -> None:
    assert check(layer, masked=masked) == {"Loop"}


def test_layer_computes_its_steps_again_behind_the_trace() -> None:
    layer = layers.GRU(UNITS)
    check(layer)
    assert "inner_loop" not in vars(layer)
