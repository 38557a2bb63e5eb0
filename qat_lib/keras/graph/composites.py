"""Input tensors of the weighted layers inside composite layers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from qat_lib.graph.call_graph import Composite
from qat_lib.graph.roles import tensorflow_operators
from qat_lib.graph.traits import Traits
from qat_lib.keras.graph.keras_traits import traits_of
from qat_lib.keras.structure import layers_of
from qat_lib.keras.wrappers.inner import inner_layers

logger = logging.getLogger("qat_lib")

MOVERS = tensorflow_operators("range preserving") | tensorflow_operators("identity") | {"Cast"}
"""TensorFlow operators that only move values or change the data type."""

# Operators behind an output layer; a product may be part of a normalization.
_JOINERS = frozenset({"ConcatV2", "Pack", "Add", "AddV2", "AddN", "Sub"})


def trace_composite(call: Any, shapes: Mapping[str, Any], dtypes: Mapping[str, str]) -> Composite:
    """Return the inputs of the inner layers of a composite in one call.

    Args:
        call: the ``qat_lib.keras.graph.layer_graph.Call`` of the composite; it is not modified.
        shapes: shapes of the model's tensors.
        dtypes: data types of the model's tensors.
    """
    layer = call.operation
    inner = inner_layers(layer)
    reads: dict[str, list[Any]] = {path: [] for path in inner}
    writes: dict[str, list[Any]] = {path: [] for path in inner}
    specs = [tf.TensorSpec(shapes[name], dtypes[name]) for name in call.inputs]
    graphs: list[Any] = []
    outputs: list[Any] = []
    inputs: dict[str, int] = {}

    def forward(*tensors: Any) -> Any:
        graphs.append(tf.compat.v1.get_default_graph())
        inputs.update({tensor.name: i for i, tensor in enumerate(tensors)})
        args, kwargs = call.fill(lambda index: tensors[index])
        # The scope discards the losses and assignments of this call.
        with (
            merged_steps(layer),
            _listening(inner, reads, writes),
            keras.StatelessScope(collect_losses=True),
        ):
            found = keras.tree.flatten(layer(*args, **kwargs))
        outputs.extend(x for x in found if tf.is_tensor(x))
        return outputs

    eager = tf.config.functions_run_eagerly()
    # Trace inner functions, such as that of a grouped convolution, in place.
    tf.config.run_functions_eagerly(True)
    try:
        tf.function(forward, autograph=False).get_concrete_function(*specs)
    # A user-defined call may raise anything; then the layer is not quantized.
    except Exception as error:  # noqa: BLE001
        logger.info("%s %r can't be traced: %s", type(layer).__name__, layer.name, error)
        reason = f"its call can't be traced ({type(error).__name__})"
        opaque = dict.fromkeys(inner, reason)
        return Composite(layers=_traits(inner), inputs={}, groups=(), opaque=opaque)
    finally:
        tf.config.run_functions_eagerly(eager)
    sources: dict[str, list[Any]] = {}
    for path, found in reads.items():
        sources[path] = [_source(x, graphs[0], inputs) for x in found]
    return replace(_composite(inner, sources), last=_last(inner, reads, writes, outputs))


@contextmanager
def merged_steps(layer: Any) -> Iterator[None]:
    """Let TimeDistributed layers within ``layer`` compute all steps as one batch within the block.

    Keras calls the inner layer step by step: a traced graph contains a copy of it for each step, or
    for an open number of steps a loop that tf2onnx converts incorrectly. Stateful inner layers keep
    their call.
    """
    found = [
        each
        for each in layers_of(layer)
        if isinstance(each, keras.layers.TimeDistributed)
        and not getattr(each.layer, "stateful", False)
    ]
    for each in found:
        # Bypass Keras's attribute tracking; an instance attribute hides the method of the class.
        object.__setattr__(each, "call", partial(_call_merged, each.layer))
    try:
        yield
    finally:
        for each in found:
            object.__delattr__(each, "call")


def _call_merged(inner: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """Return the outputs ``(batch, steps, ...)`` of a layer for inputs ``(batch, steps, ...)``."""

    def merged(x: Any) -> Any:
        return keras.ops.reshape(x, (-1, *keras.ops.shape(x)[2:]))

    options = {}
    if mask is not None and inner._call_has_mask_arg:
        options["mask"] = merged(mask)
    if inner._call_has_training_arg:
        options["training"] = training
    outputs = inner.call(merged(inputs), **options)
    return keras.ops.reshape(
        outputs, (-1, keras.ops.shape(inputs)[1], *keras.ops.shape(outputs)[1:])
    )


@contextmanager
def _listening(
    inner: Mapping[str, Any], reads: Mapping[str, list[Any]], writes: Mapping[str, list[Any]]
) -> Iterator[None]:
    """Record the inputs and outputs of each inner layer within the block."""
    for path, layer in inner.items():

        def listen(
            inputs: Any,
            *args: Any,
            _call: Any = layer.call,
            _found: Any = reads[path],
            _written: Any = writes[path],
            **kwargs: Any,
        ) -> Any:
            _found.append(inputs)
            _written.append(_call(inputs, *args, **kwargs))
            return _written[-1]

        # Bypass Keras's attribute tracking; an instance attribute hides the method of the class.
        object.__setattr__(layer, "call", listen)
    try:
        yield
    finally:
        for layer in inner.values():
            object.__delattr__(layer, "call")  # the method of the class is visible again


def _source(x: Any, graph: Any, inputs: Mapping[str, int]) -> int | str | None:
    """Return the origin of ``x``: the number of an input of the composite, or a tensor name.

    The result is None inside loops and branches, and for non-float tensors.
    """
    # A constant of the layer is not in the graph; loops and branches have graphs of their own.
    if not tf.is_tensor(x) or getattr(x, "graph", None) is not graph or not x.dtype.is_floating:
        return None
    while x.op.type in MOVERS and x.op.inputs[0].dtype.is_floating:
        x = x.op.inputs[0]
    return inputs.get(x.name, str(x.name))


def _last(
    inner: Mapping[str, Any],
    reads: Mapping[str, list[Any]],
    writes: Mapping[str, list[Any]],
    outputs: list[Any],
) -> tuple[str, ...]:
    """Return the paths of ``Composite.last``."""
    paths = {id(x): path for path, found in writes.items() for x in found}
    found, waiting, seen = set(), list(outputs), set()
    while waiting:
        x = waiting.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if (path := paths.get(id(x))) is not None:
            if traits_of(inner[path], 1).own_activation is None:
                found.add(path)
        elif x.op.type in MOVERS | _JOINERS:
            waiting += x.op.inputs
    # Layers with other weights behind them are in the middle.
    waiting, seen = [x for each in reads.values() for x in each if hasattr(x, "op")], set()
    while waiting and found:
        x = waiting.pop()
        if id(x) not in seen:
            seen.add(id(x))
            found.discard(paths.get(id(x), ""))
            waiting += x.op.inputs
    return tuple(path for path in inner if path in found)


@dataclass
class _Groups:
    """Disjoint sets of inner layers with common input tensors (union-find)."""

    parent: dict[Any, Any] = field(default_factory=dict)

    def find(self, item: Any) -> Any:
        while self.parent.setdefault(item, item) != item:
            item = self.parent[item]
        return item

    def join(self, a: Any, b: Any) -> None:
        self.parent[self.find(b)] = self.find(a)


def _composite(inner: Mapping[str, Any], sources: Mapping[str, list[Any]]) -> Composite:
    # Layers that read a common tensor must share a quantizer, so they form a group.
    opaque, groups = {}, _Groups()
    for path, found in sources.items():
        if not found:
            opaque[path] = "the layer that holds it does not call it"
        elif None in found:
            opaque[path] = "it is called in a loop or a branch, or not on a float tensor"
        else:
            for source in found:
                groups.join(("reads", path), ("tensor", source))
    inputs: dict[int, tuple[str, ...]] = {}
    members: dict[Any, list[str]] = {}
    for path in sources.keys() - opaque.keys():
        members.setdefault(groups.find(("reads", path)), [])
    for path in sources:
        if path not in opaque:
            members[groups.find(("reads", path))].append(path)
    inside = []
    for paths in members.values():
        read = {source for path in paths for source in sources[path]}
        if all(isinstance(source, int) for source in read):
            # Inputs of the composite are quantized outside, by one quantizer for all readers.
            for source in sorted(read):
                inputs[source] = tuple(path for path in paths if source in sources[path])
        else:
            inside.append(tuple(paths))
    order = list(sources)
    inside.sort(key=lambda paths: order.index(paths[0]))
    return Composite(
        layers=_traits(inner),
        inputs=dict(sorted(inputs.items())),
        groups=tuple(inside),
        opaque=opaque,
    )


def _traits(inner: Mapping[str, Any]) -> dict[str, Traits]:
    return {path: traits_of(layer, 1) for path, layer in inner.items()}
