"""Float32 semantics: compute a model as if all floating-point types were float32.

Mixed precision is a training method. The precision of an exported file is an export option, so the
model is traced with the same layers and weights under the policy ``float32``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.keras.structure import layers_of

OTHER_FLOATS = ("float16", "bfloat16", "float64")
"""Floating-point types of Keras models other than float32."""


class _Float32Policy(keras.DTypePolicy):
    """Policy with float32 compute type and unchanged variable type; Keras has no name for it."""

    def __init__(self, stored: str) -> None:
        super().__init__("float32")
        self._stored = stored

    @property
    def variable_dtype(self) -> str:
        return self._stored


@contextmanager
def float32_semantics(model: Any) -> Iterator[None]:
    """Make all layers of ``model`` compute in float32 within the block.

    Variables are not converted, but cast when read. The model must not be used in another thread
    within the block.
    """
    layers = {id(layer): layer for layer in (model, *layers_of(model))}
    with ExitStack() as stack:
        for layer in layers.values():
            if layer.compute_dtype in OTHER_FLOATS:
                stack.enter_context(_in_float32(layer))
        yield


@contextmanager
def _in_float32(layer: Any) -> Iterator[None]:
    # Not by the public setter: it modifies a DTypePolicyMap, which can't be undone.
    policy = layer._dtype_policy
    layer._dtype_policy = _Float32Policy(layer.variable_dtype)
    constants = _renew_constants(layer)
    try:
        yield
    finally:
        layer._dtype_policy = policy
        for name, value in constants.items():
            setattr(layer, name, value)


def _renew_constants(layer: Any) -> dict[str, Any]:
    """Recompute the constants of a Normalization layer; return the old values by attribute."""
    if not isinstance(layer, keras.layers.Normalization) or not layer.built:
        return {}
    old = {"mean": layer.mean, "variance": layer.variance}
    if layer.input_mean is None:
        layer.finalize_state()
    else:
        layer.build_from_config(layer.get_build_config())
    return old


def float32_array(variable: Any) -> np.ndarray:
    """Return a variable or tensor as an array, with floating-point types as float32."""
    array = np.asarray(variable)
    return array.astype(np.float32) if array.dtype.name in OTHER_FLOATS else array


def float32_for(dtype: tf.DType) -> tf.DType:
    """Return float32 for floating-point types, other types unchanged."""
    return tf.float32 if dtype.name in OTHER_FLOATS else dtype


def use_float32(graph_def: Any) -> None:
    """Convert floating-point operators and constants of a ``GraphDef`` to float32 in place.

    Casts between floating-point types are removed. Under ``float32_semantics``, the remaining other
    types come from layers and operators with an explicit type, and from the types of variables.
    """
    # Loops and branches have their bodies in the library of functions.
    functions = graph_def.library.function
    for node in (*graph_def.node, *(node for function in functions for node in function.node_def)):
        _retype(node)
    for function in functions:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            argument.type = _enum(argument.type)
    _pass_casts(graph_def)


def _retype(node: Any) -> None:
    for attr in node.attr.values():
        kind = attr.WhichOneof("value")
        if kind == "type":
            attr.type = _enum(attr.type)
        elif kind == "list" and attr.list.type:
            attr.list.type[:] = [_enum(value) for value in attr.list.type]
        elif kind == "tensor" and attr.tensor.dtype != _enum(attr.tensor.dtype):
            array = float32_array(tf.make_ndarray(attr.tensor))
            attr.tensor.CopyFrom(tf.make_tensor_proto(array, dtype=tf.float32))


def _enum(value: int) -> int:
    known = {tf.as_dtype(name).as_datatype_enum for name in OTHER_FLOATS}
    return int(tf.float32.as_datatype_enum) if value in known else value


def _pass_casts(graph_def: Any) -> None:
    """Bypass casts from float32 to float32."""
    float32 = tf.float32.as_datatype_enum
    sources: dict[str, str] = {}
    for node in graph_def.node:
        if node.op == "Cast" and node.attr["SrcT"].type == node.attr["DstT"].type == float32:
            # Keep the node for output names; Identity has only the type attribute.
            node.op = "Identity"
            for key in set(node.attr) - {"_output_shapes"}:
                del node.attr[key]
            node.attr["T"].type = float32
            sources[node.name] = node.input[0]
    for node in graph_def.node:
        for index, name in enumerate(node.input):
            # Casts can form chains.
            while (source := sources.get(name.removesuffix(":0"))) is not None:
                name = source
            node.input[index] = name
