"""Trace a Keras Functional or Sequential model into a TensorFlow graph whose every op says its layer.

Weights enter the graph as placeholders instead of frozen constants: the conversion then handles
only the structure, whatever the size of the model, and the learned arrays are bound to the ONNX
graph by identity afterwards. Each call of a layer gets a name scope of its own (``L12/``), set
absolutely, because Keras 3 enters name scopes twice and uniquifies them: the names that it gives
lie about layers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import UnsupportedModelError
from qat_lib.existing_quantizers import refuse_keras_quantized
from qat_lib.export.precision import float32_for, float32_semantics
from qat_lib.quantize_wrappers import BaseQuantizeWrapper
from qat_lib.quantizers import TensorQuantizer, export_mode

logger = logging.getLogger("qat_lib")

SCOPE_NAME = re.compile(r"[A-Za-z0-9_.\\/>-]*")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A traced model.

    Attributes:
        graph_def: TensorFlow ``GraphDef`` with shapes, without weights.
        inputs: graph tensor -> Keras input name, in the model's order.
        outputs: graph tensor and Keras output name, in the model's order.
        weights: graph tensor -> Keras variable (or constant tensor) that it stands for.
        scopes: name scope (without the slash) -> path of the layer, such as ``quant_conv1`` or
            ``backbone/quant_conv1``.
        origins: name scope -> path of the layer of the float model: of a wrapper the layer inside
            (``backbone/conv1``), of a quantizer the layer whose output it quantizes.
        markers: graph tensor of a quantizer's marker -> name of the quantizer.
        operations: path of the layer -> the Keras layer or operation.
        tensors: graph tensor -> path of the layer whose (only) output it is.
        shapes: output of a TensorFlow Reshape -> its static shape (None for an open dimension) and
            NumPy data type.
    """

    graph_def: Any
    inputs: dict[str, str]
    outputs: list[tuple[str, str]]
    weights: dict[str, Any]
    scopes: dict[str, str]
    origins: dict[str, str]
    markers: dict[str, str]
    operations: dict[str, Any]
    tensors: dict[str, str]
    shapes: dict[str, tuple[list[int | None], Any]]


@dataclass
class _Walker:
    """Calls each operation of a model, and of the models in it, within its own scope."""

    scopes: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    operations: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    # Keras's symbolic tensor, by its id -> path of the float model's layer that makes it.
    makers: dict[int, str] = field(default_factory=dict)

    def run(self, model: Any, inputs: Any, prefix: str = "") -> list[Any]:
        """Return the flat outputs of ``model`` for ``inputs``."""
        functional = _functional(model)
        flat = keras.tree.flatten(inputs)
        tensors = {id(ref): x for ref, x in zip(functional.inputs, flat, strict=True)}
        for ref in functional.inputs:
            self.makers.setdefault(id(ref), ref._keras_history.operation.name)
        for depth in sorted(functional._nodes_by_depth, reverse=True):
            for node in functional._nodes_by_depth[depth]:
                if (
                    node.operation is None
                    or node.is_input
                    or any(id(x) not in tensors for x in node.input_tensors)
                ):
                    continue
                args, kwargs = node.arguments.fill_in(tensors)
                outputs = self._call(node, args, kwargs, prefix)
                for ref, x in zip(node.outputs, keras.tree.flatten(outputs), strict=True):
                    tensors[id(ref)] = x
        return [tensors[id(ref)] for ref in functional.outputs]

    def _call(self, node: Any, args: Any, kwargs: Any, prefix: str) -> Any:
        operation = node.operation
        path = prefix + operation.name
        if isinstance(operation, keras.Model) and _is_graph(operation):
            return self._call_model(node, args, kwargs, path)
        scope = f"L{len(self.scopes)}"
        self.scopes[scope] = path
        self.origins[scope] = self._origin(node, prefix)
        self.makers.update((id(ref), self.origins[scope]) for ref in node.outputs)
        self.operations[path] = operation
        if isinstance(operation, keras.Layer):
            kwargs = _in_inference_mode(path, kwargs)
        with tf.name_scope(scope + "/"):
            outputs = operation(*args, **kwargs)
        flat = keras.tree.flatten(outputs)
        if len(flat) == 1 and path not in self.tensors.values():
            (output,) = flat
            self.tensors.setdefault(output.name, path)
        return outputs

    def _call_model(self, node: Any, args: Any, kwargs: Any, path: str) -> list[Any]:
        """Run a nested model; its symbolic tensors are made by what makes the outer ones."""
        model = node.operation
        functional = _functional(model)
        inputs, *_ = args or [kwargs["inputs"]]
        for outer, own in zip(node.input_tensors, functional.inputs, strict=True):
            self.makers[id(own)] = self.makers[id(outer)]
        outputs = self.run(model, inputs, path + "/")
        for outer, own in zip(node.outputs, functional.outputs, strict=True):
            self.makers[id(outer)] = self.makers[id(own)]
        return outputs

    def _origin(self, node: Any, prefix: str) -> str:
        """Return the path of the float model's layer that a call stands for."""
        operation = node.operation
        if isinstance(operation, TensorQuantizer):
            return self.makers[id(node.input_tensors[0])]
        if isinstance(operation, BaseQuantizeWrapper):
            operation = operation.layer
        return f"{prefix}{operation.name}"


def _in_inference_mode(path: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a layer's arguments with ``training=False``.

    Without it a layer may train by default, and so may those that it holds: they learn of the mode
    from its call.
    """
    if kwargs.get("training"):
        logger.warning(
            "%s is called with training=True in the model. It is exported in inference mode.", path
        )
    return {**kwargs, "training": False}


def _is_graph(model: Any) -> bool:
    return isinstance(model, keras.Sequential) or hasattr(model, "_nodes_by_depth")


def _functional(model: Any) -> Any:
    if isinstance(model, keras.Sequential):
        # A Sequential model keeps the Functional one that it runs; both share their layers.
        return model._functional
    return model


def trace_model(model: Any, *, batch: int | None = None) -> Trace:
    """Trace ``model`` in inference mode, with float32 semantics.

    Args:
        model: built Keras Functional or Sequential model.
        batch: fixed batch size; None (default) leaves it open.

    Raises:
        UnsupportedModelError: the model has no graph of layers (a subclassed model), is not built,
            or Keras quantized it.
    """
    if not isinstance(model, keras.Model) or not _is_graph(model):
        raise UnsupportedModelError(
            f"Expected a Keras Functional or Sequential model. Received: {type(model).__name__}. "
            "Rebuild a subclassed model with the Functional API (keras.Input, layers, keras.Model)."
        )
    if not model.built or (isinstance(model, keras.Sequential) and model._functional is None):
        raise UnsupportedModelError(
            f"Expected a built model. {model.name!r} is not: call model.build(input_shape) or begin with keras.Input."
        )
    refuse_keras_quantized(model)
    _refuse_scope_names(model)
    functional = _functional(model)
    variables = _weight_variables(model)
    specs = [
        tf.TensorSpec((batch, *x.shape[1:]), x.dtype, name=f"in{i}")
        for i, x in enumerate(functional.inputs)
    ]
    weight_specs = [
        tf.TensorSpec(v.shape, float32_for(tf.as_dtype(v.dtype)), name=f"w{i}")
        for i, v in enumerate(variables)
    ]
    walker = _Walker()
    markers: dict[str, str] = {}

    def forward(inputs: list[Any], weights: list[Any]) -> list[Any]:
        with keras.StatelessScope() as state, export_mode() as found:
            for update in zip(variables, weights, strict=True):
                # The constructor would cast the weight to the variable's type.
                state.add_update(update)
            outputs = walker.run(model, inputs)
            markers.update(found)
            return outputs

    with float32_semantics(model):
        concrete = _concrete(forward, specs, weight_specs)
    names = [tensor.name for tensor in concrete.inputs]
    reshaped = [
        y for op in concrete.graph.get_operations() if op.type == "Reshape" for y in op.outputs
    ]
    input_names = _unique([x.name for x in functional.inputs])
    return Trace(
        graph_def=concrete.graph.as_graph_def(add_shapes=True),
        inputs=dict(zip(names, input_names, strict=False)),  # The weights' names come after these.
        outputs=list(
            zip((y.name for y in concrete.outputs), _unique(functional.output_names), strict=True)
        ),
        weights=dict(
            zip(names[len(specs) :], [*variables, *concrete.captured_inputs], strict=True)
        ),
        scopes=walker.scopes,
        origins=walker.origins,
        markers=markers,
        operations=walker.operations,
        tensors=walker.tensors,
        shapes={
            y.name: (y.shape.as_list(), np.dtype(float32_for(y.dtype).as_numpy_dtype))
            for y in reshaped
            if y.shape.rank is not None
        },
    )


def _refuse_scope_names(model: Any) -> None:
    """Refuse layers that TensorFlow can't trace, before Keras tries: it would never leave the scope that failed.

    The pattern is TensorFlow's, of ``tf.name_scope``.
    """
    names = [layer.name for layer in model._flatten_layers(include_self=False)]
    if refused := [name for name in names if not SCOPE_NAME.fullmatch(name)]:
        raise UnsupportedModelError(
            "Expected layer names of letters, digits, '_', '.', '-' and '/', as TensorFlow's graphs ask for. "
            f"Received: {', '.join(map(repr, refused[:5]))}. Rename the layer."
        )


def _concrete(forward: Callable[..., Any], specs: list[Any], weight_specs: list[Any]) -> Any:
    """Trace into one flat graph.

    Keras puts a grouped convolution into a compiled function of its own, since TensorFlow has no
    CPU kernel for it; tf2onnx has no counterpart for such a call. With functions run eagerly the
    inner one is traced in place.
    """
    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        return tf.function(forward, autograph=False).get_concrete_function(specs, weight_specs)
    finally:
        tf.config.run_functions_eagerly(eager)


def _weight_variables(model: Any) -> list[Any]:
    """Return the model's variables without the quantizers' own, which the markers stand for."""
    ranges = {
        id(v)
        for layer in model._flatten_layers()
        if isinstance(layer, TensorQuantizer)
        for v in layer.variables
    }
    return [v for v in model.variables if id(v) not in ranges]


def _unique(names: list[str]) -> list[str]:
    """Return the names with a number behind those that came before."""
    result: list[str] = []
    for index, name in enumerate(names):
        result.append(name if name not in result else f"{name}_{index}")
    return result
