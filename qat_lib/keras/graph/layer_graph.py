"""LayerGraph: read-only view of a Keras model as calls and tensors.

Nested models are flattened; shared layers appear once per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras

from qat_lib.graph.call_graph import CallGraph, Composite, GraphCall
from qat_lib.graph.traits import Traits
from qat_lib.keras.graph.composites import trace_composite
from qat_lib.keras.graph.existing_quantizers import refuse_keras_quantized
from qat_lib.keras.graph.keras_traits import traits_of, unwrapped
from qat_lib.keras.structure import functional_of, graph_nodes, has_graph
from qat_lib.keras.wrappers import REGISTRY
from qat_lib.keras.wrappers.inner import is_composite
from qat_lib.lockstep.samples import BYTES_PER_ELEMENT, MEMORY


@dataclass(frozen=True, eq=False, kw_only=True)
class Call(GraphCall):
    """One call of a Keras layer or operation.

    Attributes:
        name: unique name of the call: the name of the layer, and ``layer@1``, ``layer@2`` for
            further calls of a shared layer.
        layer: unique name of the layer, prefixed by the name of its nested model if two models use
            the same name.
        path: the name of the layer after the names of its nested models, as in
            ``backbone/conv1``.
        operation: the Keras layer or operation itself.
        inputs: names of the input tensors, in the order of the arguments.
        outputs: names of the output tensors: ``"<call>:<index>"``.
        arguments: Keras's record of the arguments.
        training: the ``training`` argument of the call or an enclosing model, if any.
    """

    path: str
    arguments: Any = field(repr=False)
    training: bool | None

    @cached_property
    def traits(self) -> Traits:
        """Traits of the operation, or of a quantize wrapper's inner layer."""
        return traits_of(self.operation, len(self.inputs))

    @property
    def is_input(self) -> bool:
        """Whether this is an input of the model."""
        return isinstance(self.operation, keras.layers.InputLayer)

    @property
    def core(self) -> Any:
        """The inner layer of a quantize wrapper, else the operation itself."""
        return unwrapped(self.operation)

    @property
    def class_name(self) -> str:
        """Name of the class of the operation."""
        return type(self.operation).__name__

    def fill(self, read: Callable[[int], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the call with input number ``i`` replaced by ``read(i)``."""
        counter = iter(range(len(self.inputs)))

        def replace(value: Any) -> Any:
            return read(next(counter)) if isinstance(value, keras.KerasTensor) else value

        args = keras.tree.map_structure(replace, self.arguments.args)
        kwargs = keras.tree.map_structure(replace, self.arguments.kwargs)
        return tuple(args), dict(kwargs)


class LayerGraph(CallGraph):
    """The flat graph of a Functional or Sequential Keras model.

    A nested subclassed model is one layer.

    Args:
        model: a built model.

    Raises:
        UnsupportedModelError: the model is subclassed or not built.
    """

    calls: tuple[Call, ...]
    catalog = REGISTRY

    def __init__(self, model: Any) -> None:
        self.model = model
        function = functional_of(model)
        builder = _Flattener()
        builder.add(function, None, ())
        self.name = str(model.name)
        self.calls = tuple(builder.calls)
        self.inputs = tuple(builder.names[id(t)] for t in function.inputs)
        self.outputs = tuple(builder.names[id(t)] for t in function.outputs)
        self.shapes = builder.shapes
        self.dtypes = builder.dtypes
        # Input and output tensors of each nested model by name; for a shared model, those of all
        # calls.
        self.nested: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = builder.nested

    @cached_property
    def composites(self) -> Mapping[str, Composite]:
        """Layers without a wrapper but with weighted layers inside, by name."""
        found: dict[str, Composite] = {}
        for call in self.calls:
            if call.name == call.layer and is_composite(call.operation):
                found[call.layer] = trace_composite(call, self.shapes, self.dtypes)
        return found

    def refuse_quantized(self) -> None:
        """Reject models quantized by ``keras.Model.quantize``.

        Raises:
            UnsupportedModelError: a layer contains integers instead of float weights.
        """
        refuse_keras_quantized(self.model)


class _Flattener:
    """Collects the calls of a model, with nested models expanded in place."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.names: dict[int, str] = {}
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.nested: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._layers: dict[int, str] = {}
        self._used: set[str] = set()
        self._count: dict[str, int] = {}

    def add(self, function: Any, training: bool | None, around: tuple[str, ...]) -> None:
        """Add all calls of ``function``; its input tensors must have names already.

        Args:
            function: a Functional graph.
            training: the ``training`` argument of its call.
            around: names of the enclosing models, outermost first.
        """
        for node in graph_nodes(function):
            # Inputs of nested models are aliases of outer tensors, not calls.
            if node.is_input and around and isinstance(node.operation, keras.layers.InputLayer):
                continue
            if isinstance(node.operation, keras.Model) and has_graph(node.operation):
                self._add_nested(node, training, around)
            else:
                self._add_call(node, training, around)

    def _add_nested(self, node: Any, training: bool | None, around: tuple[str, ...]) -> None:
        inner = functional_of(node.operation)
        given = node.arguments.kwargs.get("training", training)
        # Inner tensors are aliases of the outer ones, so calls connect directly across models.
        for outer, own in zip(node.input_tensors, inner.inputs, strict=True):
            self.names[id(own)] = self.names[id(outer)]
        self.add(inner, given, (*around, node.operation.name))
        # Only known after the inner calls are added.
        for outer, own in zip(node.outputs, inner.outputs, strict=True):
            self.names[id(outer)] = self.names[id(own)]
        read, made = self.nested.get(node.operation.name, ((), ()))
        read += tuple(self.names[id(t)] for t in node.input_tensors)
        self.nested[node.operation.name] = (
            read,
            made + tuple(self.names[id(t)] for t in node.outputs),
        )

    def _add_call(self, node: Any, training: bool | None, around: tuple[str, ...]) -> None:
        layer = self._layer_name(node.operation, around)
        # The first call has the plain name, so unshared layers have the same name as their call.
        count = self._count[layer] = self._count.get(layer, -1) + 1
        name = layer if count == 0 else f"{layer}@{count}"
        outputs = tuple(f"{name}:{i}" for i in range(len(node.outputs)))
        for tensor, output in zip(node.outputs, outputs, strict=True):
            self.names[id(tensor)] = output
            self.shapes[output] = tuple(tensor.shape)
            self.dtypes[output] = str(tensor.dtype)
        self.calls.append(
            Call(
                name=name,
                layer=layer,
                path="/".join((*around, node.operation.name)),
                operation=node.operation,
                inputs=tuple(self.names[id(t)] for t in node.input_tensors),
                outputs=outputs,
                arguments=node.arguments,
                training=node.arguments.kwargs.get("training", training),
            )
        )

    def _layer_name(self, operation: Any, around: tuple[str, ...]) -> str:
        known = self._layers.get(id(operation))
        if known is not None:
            return known
        base = str(operation.name)
        if base in self._used:
            base = "_".join((*around, base))
        name = base
        suffix = 1
        while name in self._used:
            name, suffix = f"{base}_{suffix}", suffix + 1
        self._used.add(name)
        self._layers[id(operation)] = name
        return name


def fitting_batch(graph: LayerGraph, batch_size: int) -> int:
    """Return the largest batch size, up to ``batch_size``, that fits into 1 GiB; at least 1."""
    return min(batch_size, max(1, MEMORY // bytes_per_sample(graph)))


def bytes_per_sample(graph: LayerGraph) -> int:
    """Return the peak memory of the tensors of one sample in both forms, in bytes.

    An axis of unknown size counts as 1.
    """
    readers = {tensor: len(graph.consumers(tensor)) for tensor in graph.order}
    alive = {tensor: _elements(graph.shapes[tensor]) for tensor in graph.inputs}
    peak = sum(alive.values())
    for call in graph.calls:
        if call.is_input:
            continue
        # Inputs and outputs of a call are alive at once; tensors are freed after their last reader.
        alive.update({tensor: _elements(graph.shapes[tensor]) for tensor in call.outputs})
        peak = max(peak, sum(alive.values()))
        for tensor in call.inputs:
            readers[tensor] -= 1
            if readers[tensor] == 0:
                alive.pop(tensor, None)
    return 2 * BYTES_PER_ELEMENT * peak  # both forms


def _elements(shape: Sequence[int | None]) -> int:
    return math.prod(size or 1 for size in shape[1:])
