"""Find the predecessors and successors of a layer."""

from __future__ import annotations

import difflib
from typing import Any

from qat_lib.errors import SpecError
from qat_lib.keras.graph.layer_graph import LayerGraph


def find_my_predecessors(model: Any, current_layer_name: str) -> list[dict[str, Any]]:
    """Return a layer's input layers, in input order.

    Args:
        model: a Functional or Sequential model, including the layers of nested models.
        current_layer_name: name of the layer, or of a nested model.

    Returns:
        A dict for each input, with the keys ``class``, ``module`` and ``name`` (strings) and
        ``layer`` (the object). The inputs of a shared layer are listed call by call; an input of
        the model has no predecessor.

    Raises:
        SpecError: the model has no layer with this name.
        UnsupportedModelError: the model is subclassed or not built.

    Examples:
        >>> import keras
        >>> x = keras.Input((2,))
        >>> model = keras.Model(x, keras.layers.Dense(1, name="head")(keras.layers.ReLU()(x)))
        >>> [found["class"] for found in find_my_predecessors(model, "head")]
        ['ReLU']
    """
    graph = LayerGraph(model)
    read, _ = _tensors(graph, current_layer_name)
    return [_info(graph.producer(tensor)) for tensor in read]


def find_my_successors(model: Any, current_layer_name: str) -> list[dict[str, Any]]:
    """Return the readers of a layer's outputs, in the model's order.

    Arguments, result and errors are the same as for ``find_my_predecessors``.
    """
    graph = LayerGraph(model)
    order = {call.name: index for index, call in enumerate(graph.calls)}
    _, made = _tensors(graph, current_layer_name)
    readers = [call for tensor in made for call, _ in graph.consumers(tensor)]
    return [_info(call) for call in sorted(readers, key=lambda call: order[call.name])]


def _tensors(graph: LayerGraph, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of all inputs and outputs of a layer or nested model, over all calls."""
    if not isinstance(name, str):
        raise SpecError(f"Expected the name of a layer, as a string. Received: {name!r}.")
    calls = graph.calls_of(name)
    if calls:
        return tuple(t for call in calls for t in call.inputs), tuple(
            t for call in calls for t in call.outputs
        )
    if name in graph.nested:
        return graph.nested[name]
    near = difflib.get_close_matches(name, [layer for layer, _ in graph.layers()], n=3)
    hint = f" Nearest: {', '.join(near)}." if near else ""
    raise SpecError(f"The model {graph.model.name!r} has no layer {name!r}.{hint}")


def _info(call: Any) -> dict[str, Any]:
    kind = type(call.operation)
    return {
        "class": kind.__name__,
        "module": kind.__module__,
        "name": call.layer,
        "layer": call.operation,
    }
