"""Export of recurrent layers as one ONNX operator each, instead of a loop over the steps.

Keras computes a recurrent layer in a ``tf.while_loop``, which tf2onnx converts to a Loop, many times
slower than an LSTM, GRU or RNN, and rejected by OpenVINO for some networks. Within
``whole_sequences``, a traced layer instead leaves a placeholder, an IdentityN of the inputs and of
zeros in the shapes of the outputs. ``use_operators`` replaces it within tf2onnx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from qat_lib.keras.structure import layers_of

# ONNX operator of each cell, and the order of its gates in those of Keras: an LSTM has i, f, c, o in
# Keras and i, o, f, c in ONNX.
_CELLS: dict[Any, tuple[str, tuple[int, ...]]] = {
    keras.layers.LSTMCell: ("LSTM", (0, 3, 1, 2)),
    keras.layers.GRUCell: ("GRU", (0, 1, 2)),
    keras.layers.SimpleRNNCell: ("RNN", (0,)),
}
_ACTIVATIONS = {
    keras.activations.tanh: "Tanh",
    keras.activations.sigmoid: "Sigmoid",
    keras.activations.relu: "Relu",
}


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Operator in the place of a placeholder.

    Attributes:
        type: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        attributes: its ONNX attributes.
        has_states: whether its initial states differ from zeros.
    """

    type: str
    attributes: Mapping[str, Any]
    has_states: bool = False


@contextmanager
def whole_sequences(model: Any) -> Iterator[dict[str, Operator]]:
    """Let recurrent layers within ``model`` leave placeholders within the block.

    Layers with a state that outlives a call, with other cells or other activations, and those that
    return the states of masked sequences keep their loop.

    Yields:
        The operators by name of the placeholder, filled by the calls within the block.
    """
    operators: dict[str, Operator] = {}
    found = []
    for each in layers_of(model):
        operator = _operator(each) if isinstance(each, keras.layers.RNN) else None
        if operator is not None:
            found.append(each)
            # Bypass Keras's attribute tracking; an instance attribute hides the method of the class.
            object.__setattr__(each, "inner_loop", partial(_inner_loop, each, operator, operators))
    try:
        yield operators
    finally:
        for each in found:
            object.__delattr__(each, "inner_loop")


def _operator(layer: Any) -> Operator | None:
    """Return the operator that computes a layer; None if there is none."""
    cell = layer.cell
    # A subclass may compute something else.
    if layer.stateful or type(cell) not in _CELLS:
        return None
    operator, _ = _CELLS[type(cell)]
    functions = [cell.activation]
    if operator != "RNN":
        functions.insert(0, cell.recurrent_activation)
    if operator == "LSTM":
        functions.append(cell.activation)
    if not all(function in _ACTIVATIONS for function in functions):
        return None
    attributes = {
        "hidden_size": cell.units,
        "direction": "reverse" if layer.go_backwards else "forward",
        "activations": [_ACTIVATIONS[function] for function in functions],
    }
    if operator == "GRU":
        attributes["linear_before_reset"] = int(cell.reset_after)
    return Operator(type=operator, attributes=attributes)


def _inner_loop(
    layer: Any,
    operator: Operator,
    operators: dict[str, Operator],
    sequences: Any,
    initial_state: Any,
    mask: Any = None,
    training: bool = False,
) -> tuple[Any, Any, list[Any]]:
    """Return last output, outputs and states, as ``keras.layers.RNN.inner_loop`` does."""
    states = keras.tree.flatten(initial_state)
    if isinstance(mask, (list, tuple)):
        mask = mask[0]
    if mask is not None and layer.return_state:
        loop = type(layer).inner_loop(layer, sequences, initial_state, mask, training)
        return cast("tuple[Any, Any, list[Any]]", loop)
    if mask is not None:
        # Steps that count, in front: the operator has no masks.
        place, mask = _places(mask, layer.go_backwards)
        steps = tf.range(1, tf.shape(place)[1] + 1)
        sequences = _selection(place[:, None, :], steps[:, None], mask[:, None, :]) @ sequences
        operator = replace(operator, attributes={**operator.attributes, "direction": "forward"})
    outputs, *states = _placeholder(layer.cell, operator, operators, sequences, states)
    if mask is None:
        last = states[0]
    else:
        # A masked step repeats the output of the step before, or is zero.
        shown = mask[:, :, None] if layer.zero_output_for_mask else True
        outputs = _selection(place[:, :, None], steps, shown) @ outputs
        last = outputs[:, 0 if layer.go_backwards else -1]
    # Keras returns the outputs in the order of their computation.
    return last, tf.reverse(outputs, [1]) if layer.go_backwards else outputs, states


def _places(mask: Any, backwards: bool) -> tuple[Any, Any]:
    """Return how many steps count up to each, in the order of computation, and the mask."""
    mask = tf.cast(mask, tf.bool)
    if mask.shape.rank == 3:
        mask = tf.squeeze(mask, -1)
    return tf.cumsum(tf.cast(mask, tf.int32), axis=1, reverse=backwards), mask


def _selection(place: Any, step: Any, counts: Any) -> Any:
    """Return a matrix for each sequence; each of its rows selects one step or none."""
    return tf.cast(tf.equal(place, step) & counts, tf.float32)


def _placeholder(
    cell: Any, operator: Operator, operators: dict[str, Operator], sequences: Any, states: list[Any]
) -> list[Any]:
    """Return outputs ``(batch, steps, units)`` and states ``(batch, units)`` of a placeholder."""
    _, order = _CELLS[type(cell)]
    columns = np.concatenate([np.arange(cell.units) + gate * cell.units for gate in order])

    def by_gate(weight: Any) -> Any:
        weight = tf.convert_to_tensor(weight)
        return tf.gather(weight, columns, axis=-1) if operator.type == "LSTM" else weight

    x = tf.transpose(sequences, [1, 0, 2])
    steps, batch, _ = (x.shape[i] or size for i, size in enumerate(tf.unstack(tf.shape(x))))
    weights = cell.kernel, cell.recurrent_kernel
    given = [x, *(tf.expand_dims(tf.transpose(by_gate(w)), 0) for w in weights)]
    if cell.use_bias:
        bias = by_gate(cell.bias)  # (gates,) of the inputs, or (2, gates) with those of the state
        if bias.shape.rank == 1:
            bias = tf.stack([bias, tf.zeros_like(bias)])
        given.append(tf.reshape(bias, (1, -1)))
    outputs = [
        tf.zeros([steps, 1, batch, cell.units]),
        *(tf.expand_dims(state, 0) for state in states),
    ]
    outputs = tf.identity_n([*outputs, *given])[: len(outputs)]
    has_states = not all(map(_is_zero, states))
    operators[outputs[0].op.name] = replace(operator, has_states=has_states)
    made, *states = outputs
    by_step = tf.transpose(tf.squeeze(made, 1), [1, 0, 2])
    return [by_step, *(tf.squeeze(state, 0) for state in states)]


def _is_zero(state: Any) -> bool:
    """Return whether a state consists of zeros, as Keras makes them for a batch of any size."""
    value = tf.get_static_value(state)
    if value is None and state.op.type == "Fill":
        value = tf.get_static_value(state.op.inputs[1])
    return value is not None and not np.any(value)


def use_operators(operators: Mapping[str, Operator], graph: Any, nodes: list[Any]) -> list[Any]:
    """Replace the placeholders in a graph of tf2onnx by their operators; a rewriter."""
    # tf2onnx would replace a loop that resembles an LSTM, and require constant weights for it.
    graph.lstm_rewriter_context = None
    for node in nodes:
        operator = operators.get(node.name)
        if operator is None or node.type == operator.type:  # tf2onnx may call a rewriter again
            continue
        count = 3 if operator.type == "LSTM" else 2
        outputs = node.output[:count]
        _, *states, x, kernel, recurrent_kernel = node.input[: count + 3]
        bias = node.input[count + 3] if len(node.input) > count + 3 else ""
        shapes = [graph.get_shape(output) for output in outputs]
        dtypes = [graph.get_dtype(output) for output in outputs]
        graph.remove_node(node.name)
        graph.make_node(
            operator.type,
            [x, kernel, recurrent_kernel, bias, "", *(states if operator.has_states else ())],
            outputs=outputs,
            attr=dict(operator.attributes),
            shapes=shapes,
            dtypes=dtypes,
            name=node.name,
            skip_conversion=True,
        )
    return list(graph.get_nodes())
