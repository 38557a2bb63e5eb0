"""Typed helpers over onnx-ir for the lowering passes.

A pass is written as an in-place edit of a model. ``lowering_pass`` turns it into a pure function
that returns a new model; ``run_in_place`` runs the edit itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeGuard

import numpy as np
import onnx_ir as ir

P = ParamSpec("P")

LAYER = "keras_layer"
"""Key of ``node.meta``: path of the source layer in the exported model, used to name the node."""

ORIGIN = "origin"
"""Key of ``node.meta``: path of the layer in the float model, used by plan and reports.

For a wrapper's node it is the inner layer, for a quantizer's the layer of the quantized output."""

BATCH_NORM = "batch_norm"
"""Key of ``node.meta`` of nodes from a BatchNormalization layer: its ``BatchNorm`` parameters."""

FACTOR = "factor"
"""Key of ``node.meta`` of a weight's DQ: signed float64 factor of each channel, folded into the
scale."""

LEARNED = "learned_scale"
"""Key of ``node.meta`` of a weight's DQ: learned float32 scale, along the node's axis."""

ORIGINAL = "original_integers"
"""Key of ``node.meta`` of a weight's DQ: the int8 weights in the node's layout, before any fold."""

TENSOR = "keras_tensor"
"""Key of ``value.meta``: path of the Keras layer with this output (up to the axis order)."""

QUANTIZER = "quantizer"
"""Key of ``node.meta`` of a Q or DQ node: name of its quantizer."""

UNUSED = "unused_quantizers"
"""Key of ``model.meta``: quantizers of tensors that no output of the model depends on."""


@dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """Parameters of a BatchNormalization layer, one float32 value per channel."""

    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    epsilon: float

    @property
    def factor(self) -> np.ndarray:
        """``gamma / sqrt(variance + epsilon)`` in float64."""
        return np.asarray(
            self.gamma.astype(np.float64) / np.sqrt(self.variance.astype(np.float64) + self.epsilon)
        )

    @property
    def offset(self) -> np.ndarray:
        """``beta - mean * factor`` in float64."""
        return np.asarray(self.beta.astype(np.float64) - self.mean.astype(np.float64) * self.factor)


def lowering_pass(
    rewrite: Callable[Concatenate[ir.Model, P], None],
) -> Callable[Concatenate[ir.Model, P], ir.Model]:
    """Convert an in-place rewrite to a pure function from model to model."""

    @functools.wraps(rewrite)
    def pure(model: ir.Model, *args: P.args, **kwargs: P.kwargs) -> ir.Model:
        copy = copy_graph(model)
        run_in_place(rewrite, copy, *args, **kwargs)
        return copy

    # functools.wraps keeps the parameter's name, Callable has none.
    return pure  # type: ignore[return-value]


def run_in_place(lowering: Callable[..., Any], model: ir.Model, *args: Any, **kwargs: Any) -> None:
    """Run a lowering pass, or its rewrite, on ``model`` itself."""
    inspect.unwrap(lowering)(model, *args, **kwargs)
    # Passes may insert nodes after their readers.
    model.graph.sort()
    drop_unused(model)


def copy_graph(model: ir.Model) -> ir.Model:
    """Return a copy of a model; the copies share the data of their tensors."""
    copy = model.clone()
    # onnx-ir shares type objects between copies, and changes them in place.
    graph = copy.graph
    made = (output for node in graph for output in node.outputs)
    for value in (*graph.inputs, *graph.initializers.values(), *made):
        if isinstance(value.type, ir.TensorType):
            value.type = ir.TensorType(value.type.dtype)
    return copy


def drop_unused(model: ir.Model) -> None:
    """Remove nodes and initializers without readers."""
    graph = model.graph
    outputs = set(graph.outputs)
    # Backwards: removing a reader may leave the nodes in front without readers.
    for node in reversed(graph):
        if not any(output in outputs or output.uses() for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and value not in outputs:
            del graph.initializers[name]
            value.const_value = None  # removed nodes keep the value until they are collected


def is_op(node: ir.Node | None, *op_types: str) -> TypeGuard[ir.Node]:
    """Return whether ``node`` is one of the named standard operators."""
    return node is not None and node.domain in ("", "ai.onnx") and node.op_type in op_types


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return input ``index`` of ``node``, or None if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes ``value``; None for inputs, initializers and absent values."""
    return None if value is None else value.producer()


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the array of an initializer or Constant node, else None."""
    if value is None:
        return None
    tensor = value.const_value if value.is_initializer() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return the number of a one-element constant, else None."""
    array = constant(value)
    return None if array is None or array.size != 1 else float(array.reshape(()))


def add_constant(graph: ir.Graph, array: np.ndarray, name: str) -> ir.Value:
    """Register ``array`` as an initializer; the name is made unique."""
    # onnx-ir raises an error for a name that is registered already.
    unique, count = name, 0
    while unique in graph.initializers:
        count += 1
        unique = f"{name}_{count}"
    array = np.asarray(array)
    value = ir.Value(
        name=unique,
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape(array.shape),
        const_value=ir.Tensor(array, name=unique),
    )
    graph.register_initializer(value)
    return value


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return the Python value of an attribute, with lists instead of tuples."""
    attr = node.attributes.get(name)
    if attr is None:
        return default
    return list(attr.value) if isinstance(attr.value, tuple) else attr.value


def set_ints(node: ir.Node, name: str, values: Sequence[int]) -> None:
    """Set an attribute that is a list of integers."""
    node.attributes[name] = ir.AttrInt64s(name, [int(v) for v in values])


def set_int(node: ir.Node, name: str, value: int) -> None:
    """Set an attribute that is an integer."""
    node.attributes[name] = ir.AttrInt64(name, int(value))


def consumers(value: ir.Value) -> list[ir.Node]:
    """Return the readers of ``value``, each once, in stable order."""
    return list(dict.fromkeys(use.node for use in value.uses()))


def only_consumer(value: ir.Value) -> ir.Node | None:
    """Return the only reader of ``value``; None for several readers and for a graph output."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def rank(value: ir.Value | None) -> int | None:
    """Return the number of dimensions, or None if unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def dims(value: ir.Value | None) -> list[int | None] | None:
    """Return the dimensions, with None for open ones; None for unknown rank."""
    if value is None or value.shape is None:
        return None
    return [dim if isinstance(dim, int) else None for dim in value.shape]


def border_dimension(dim: Any, index: int, name: str, batch: int | None) -> int | str:
    """Return dimension ``index`` of input or output ``name``; open dimensions get a name.

    Args:
        dim: size of the dimension, if known.
        index: its axis; axis 0 is the batch.
        name: the input or output.
        batch: fixed batch size; None leaves it open.
    """
    if isinstance(dim, int):
        return dim
    if index == 0:
        return "batch" if batch is None else batch
    return f"{name}_dim_{index}"


def replace(old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` with ``new`` in all readers.

    A graph output keeps its name and the names of its open dimensions; a Keras tensor keeps its
    identity.
    """
    if TENSOR in old.meta:
        new.meta[TENSOR] = old.meta[TENSOR]
    if old.is_graph_output():
        name = old.name
        # Cleared first: two values of a graph must not have one name.
        old.name = None
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name = name
        new.shape = _named_dimensions(new.shape, old.shape)
        # A graph output needs a type in the file.
        if new.dtype is None and old.dtype is not None:
            new.dtype = old.dtype
    else:
        old.replace_all_uses_with(new)


def _named_dimensions(shape: ir.Shape | None, names: ir.Shape | None) -> ir.Shape | None:
    """Return ``shape`` with open dimensions named from ``names``, such as "batch"."""
    if shape is None or names is None or len(shape) != len(names):
        return shape or names
    merged: list[Any] = list(shape)
    for axis, name in enumerate(names):
        if isinstance(name, ir.SymbolicDim) and not isinstance(merged[axis], int):
            merged[axis] = name
    return ir.Shape(merged)


def new_node(
    op_type: str,
    inputs: Iterable[ir.Value | None],
    attributes: dict[str, Any] | None = None,
    *,
    origin: ir.Node,
    shape: Sequence[Any] | ir.Shape | None = None,
    dtype: ir.DataType | None = None,
) -> ir.Node:
    """Build a one-output node for the Keras layer of ``origin``."""
    node = ir.node(op_type, list(inputs), attributes)
    for key in (LAYER, ORIGIN, BATCH_NORM):
        if key in origin.meta:
            node.meta[key] = origin.meta[key]
    output = node.outputs[0]
    if shape is not None:
        output.shape = shape if isinstance(shape, ir.Shape) else ir.Shape(shape)
    known = dtype if dtype is not None else origin.outputs[0].dtype
    if known is not None:
        output.dtype = known
    return node


def insert_before(anchor: ir.Node, node: ir.Node) -> ir.Value:
    """Insert ``node`` before ``anchor`` in its graph and return its output."""
    graph = anchor.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError("The anchor node belongs to no graph.")
    graph.insert_before(anchor, node)
    return node.outputs[0]
