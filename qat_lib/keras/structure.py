"""Access to Keras's private graph records, without a public API; no other module reads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras

from qat_lib.errors import UnsupportedModelError

RECORDS = frozenset(
    {"_layers", "_metrics", "_operations", "_tracker", "_inbound_nodes", "_outbound_nodes"}
)
"""Attributes with Keras's records of nested layers."""

SCOPE_NAME = re.compile(r"[A-Za-z0-9_.\\/>-]*")
"""TensorFlow's pattern for the names of ``tf.name_scope``."""


def has_graph(model: Any) -> bool:
    """Whether a model is Functional or Sequential, built or not."""
    return isinstance(model, keras.Sequential) or hasattr(model, "_nodes_by_depth")


def functional_of(model: Any) -> Any:
    """Return the Functional graph of a model.

    Raises:
        UnsupportedModelError: the model has no graph of layers.
    """
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(f"Expected a keras.Model. Received: {type(model).__name__}.")
    if isinstance(model, keras.Sequential):
        if getattr(model, "_functional", None) is None:
            raise UnsupportedModelError(
                f"The Sequential model {model.name!r} is not built, so its graph is not known. "
                "Give it an input shape: put keras.Input(shape) first, or call it on data once."
            )
        return model._functional
    if not has_graph(model):
        raise UnsupportedModelError(
            f"{type(model).__name__} {model.name!r} is a subclassed model, whose graph is not "
            "known. "
            "Build a Functional model: `inputs = keras.Input(shape); "
            "model = keras.Model(inputs, subclassed.call(inputs))` does it where `call` uses "
            "layers and keras.ops only "
            "and does not branch on `training`."
        )
    return model


def with_graph(model: Any, inputs: Any) -> Any:
    """Return ``model``, or a Functional model of the layers of a subclassed model.

    A ``call`` that reads sizes or values, or uses TensorFlow, has no graph: then the whole subclassed
    model is the only layer.

    Args:
        model: the model.
        inputs: ``keras.Input`` tensors in the structure that the model takes, open in axis 0 only.

    Raises:
        UnsupportedModelError: a subclassed model can't be called with such inputs.
    """
    if not isinstance(model, keras.Model) or has_graph(model):
        return model
    example = keras.tree.map_structure(
        lambda x: keras.ops.zeros((1, *x.shape[1:]), x.dtype), inputs
    )
    try:
        followed = keras.Model(inputs, model.call(inputs), name=model.name)
        followed(example)  # an open size in the graph fails here
    except Exception:  # noqa: BLE001 - the code of a user's own class
        try:
            return keras.Model(inputs, model(inputs), name=model.name)
        except Exception as error:
            shapes = ", ".join(str(tensor.shape) for tensor in keras.tree.flatten(inputs))
            raise UnsupportedModelError(
                f"{type(model).__name__} {model.name!r} is a subclassed model that can't be called "
                f"with inputs of shape {shapes}: {str(error).strip().splitlines()[0]}"
            ) from error
    return followed


def refuse_scope_names(model: Any) -> None:
    """Reject layer names that TensorFlow can't train or trace.

    Raises:
        UnsupportedModelError: the name of a layer is not a valid scope name.
    """
    names = [layer.name for layer in layers_inside(model)]
    if refused := [name for name in names if not SCOPE_NAME.fullmatch(name)]:
        raise UnsupportedModelError(
            "Expected layer names of letters, digits, '_', '.', '-' and '/', as TensorFlow's "
            "graphs ask for. "
            f"Received: {', '.join(map(repr, refused[:5]))}. Rename the layer."
        )


def own_steps(model: Any) -> list[str]:
    """Return the training and prediction steps overridden by the class of a model.

    A graph of layers does not contain them; a detector may decode its boxes there, for example.
    """
    found = []
    for name in ("predict_step", "train_step", "test_step"):
        owner = next((base for base in type(model).__mro__ if name in vars(base)), None)
        if owner is not None and owner.__module__.partition(".")[0] != "keras":
            found.append(name)
    return found


def graph_nodes(function: Any) -> Iterator[Any]:
    """Yield the nodes of a Functional graph in topological order."""
    # Keras counts depth from the outputs: inputs have the greatest one.
    for depth in sorted(function._nodes_by_depth, reverse=True):
        yield from function._nodes_by_depth[depth]


def input_structure(function: Any) -> Any:
    """Return the input structure of a Functional graph; None for other models."""
    return getattr(function, "_inputs_struct", None)


def pack_inputs(model: Any, parts: Sequence[Any]) -> Any:
    """Return tensors, one per input, in the input structure of a model."""
    structure = input_structure(functional_of(model))
    return parts[0] if structure is None else keras.tree.pack_sequence_as(structure, list(parts))


def run_eagerly(model: Any, inputs: Any) -> Any:
    """Return the outputs of a model for inference, releasing tensors after their last reader.

    ``Model.__call__`` keeps the tensors of all layers until it returns: 2.9 GB for 32 photographs
    in MobileNetV2.

    Args:
        model: a Keras model; a subclassed one is called as usual.
        inputs: a batch, in any form that the model takes.
    """
    if not has_graph(model):
        return model(inputs, training=False)
    function = functional_of(model)
    # Keras's checks and conversions come before this method.
    function._run_through_graph = partial(_run_releasing, function)
    try:
        return model(inputs, training=False)
    finally:
        del function._run_through_graph


def _run_releasing(function: Any, inputs: Any, operation_fn: Callable[[Any], Any]) -> Any:
    nodes = [node for node in graph_nodes(function) if not node.is_input]
    readers = Counter(id(tensor) for node in nodes for tensor in node.input_tensors)
    readers.update(id(tensor) for tensor in function.outputs)
    values = {id(x): y for x, y in zip(function.inputs, keras.tree.flatten(inputs), strict=True)}
    for node in nodes:
        args, kwargs = node.arguments.fill_in(values)
        outputs = keras.tree.flatten(operation_fn(node.operation)(*args, **kwargs))
        values.update((id(x), y) for x, y in zip(node.outputs, outputs, strict=True))
        readers.subtract(id(tensor) for tensor in node.input_tensors)
        # A name for the outputs or arguments would keep a tensor during the next call.
        del args, kwargs, outputs
        for tensor in (*node.input_tensors, *node.outputs):
            if readers[id(tensor)] == 0:
                values.pop(id(tensor), None)
    found = [values[id(tensor)] for tensor in function.outputs]
    return keras.tree.pack_sequence_as(output_structure(function), found)


def output_structure(function: Any) -> Any:
    """Return the output structure of a Functional graph."""
    return function._outputs_struct


def maker_of(tensor: Any) -> Any:
    """Return the layer or operation that computes a tensor of a graph."""
    return tensor._keras_history.operation


def count_calls(layer: Any) -> int:
    """Return the number of recorded calls of a layer, in all graphs."""
    return len(layer._inbound_nodes)


def children_of(layer: Any) -> list[Any]:
    """Return the direct children of a layer."""
    return list(layer._layers)


def layers_of(layer: Any) -> list[Any]:
    """Return a layer or model and all nested layers."""
    return list(layer._flatten_layers())


def layers_inside(layer: Any) -> list[Any]:
    """Return all nested layers of a layer or model."""
    return list(layer._flatten_layers(include_self=False))
