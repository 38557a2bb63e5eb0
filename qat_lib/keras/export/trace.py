"""Tracing of a Keras model into a TensorFlow graph of ops labelled by layer.

Weights enter the graph as placeholders instead of frozen constants, so the conversion processes
only the structure, independent of the size of the model. The arrays are bound to the ONNX graph
afterwards. Each call of a layer gets a separate absolute name scope (``L12/``), because Keras 3
enters name scopes twice and makes them unique, so its names do not identify layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import ExportError, UnsupportedModelError
from qat_lib.keras.export.precision import float32_for, float32_semantics
from qat_lib.keras.export.prepare import node_of
from qat_lib.keras.export.recurrent import Operator, whole_sequences
from qat_lib.keras.graph.composites import merged_steps
from qat_lib.keras.graph.existing_quantizers import refuse_keras_quantized
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers import TensorQuantizer, export_mode
from qat_lib.keras.structure import functional_of, has_graph, layers_of, refuse_scope_names

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A traced model.

    Attributes:
        graph_def: TensorFlow ``GraphDef`` with shapes, without weights.
        inputs: graph tensor -> Keras input name, in the model's order.
        outputs: graph tensor and Keras output name, in the model's order.
        weights: graph tensor -> its Keras variable (or constant tensor).
        scopes: name scope (without the slash) -> path of the layer, such as ``quant_conv1`` or
            ``backbone/quant_conv1``.
        origins: name scope -> path of the corresponding layer of the float model: the inner layer
            of a wrapper (``backbone/conv1``), or the layer that computes the input of a quantizer.
        markers: graph tensor of a quantizer's marker -> name of the quantizer.
        recurrent: placeholder of a recurrent layer -> its ONNX operator.
        operations: path of the layer -> the Keras layer or operation.
        tensors: single output tensor of a layer -> path of the layer.
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
    recurrent: dict[str, Operator]
    operations: dict[str, Any]
    tensors: dict[str, str]
    shapes: dict[str, tuple[list[int | None], Any]]

    def unused_quantizers(self) -> set[str]:
        """Return the quantizers that no output depends on.

        A layer computes all its outputs, even if the model uses some of them.
        """
        read = {node.name: [node_of(name) for name in node.input] for node in self.graph_def.node}
        waiting, used = [node_of(name) for name, _ in self.outputs], set[str]()
        while waiting:
            if (name := waiting.pop()) not in used:
                used.add(name)
                waiting += read[name]
        # Markers in the branches of a condition are in other graphs.
        unused = read.keys() - used
        needed = {name for tensor, name in self.markers.items() if node_of(tensor) not in unused}
        return set(self.markers.values()) - needed


@dataclass
class _Calls:
    """Runs each call of a model in a name scope, and records its layer."""

    scopes: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    operations: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    # Tensor of the call graph -> path of the layer of the float model that computes it.
    makers: dict[str, str] = field(default_factory=dict)

    def run(self, graph: LayerGraph, inputs: list[Any]) -> list[Any]:
        """Return the outputs of the model for ``inputs``."""
        values = dict(zip(graph.inputs, inputs, strict=True))
        for call in graph.calls:
            self.makers.update(dict.fromkeys(call.outputs, self._origin(call)))
            if not call.is_input:
                outputs = self._make(call, [values[tensor] for tensor in call.inputs])
                values.update(zip(call.outputs, outputs, strict=True))
        return [values[tensor] for tensor in graph.outputs]

    def _origin(self, call: Call) -> str:
        """Return the path of the float layer of a call."""
        if isinstance(call.operation, TensorQuantizer):
            return self.makers[call.inputs[0]]
        *models, _ = call.path.split("/")
        return "/".join([*models, call.core.name])

    def _make(self, call: Call, inputs: list[Any]) -> list[Any]:
        scope = f"L{len(self.scopes)}"
        self.scopes[scope] = call.path
        self.origins[scope] = self.makers[call.outputs[0]]
        self.operations[call.path] = call.operation
        args, kwargs = call.fill(inputs.__getitem__)
        if isinstance(call.operation, keras.Layer):
            kwargs = _in_inference_mode(call.path, kwargs)
        # The trailing slash makes the scope absolute.
        with tf.name_scope(scope + "/"):
            try:
                outputs: list[Any] = keras.tree.flatten(call.operation(*args, **kwargs))
            except tf.errors.OperatorNotAllowedInGraphError as error:
                shapes = [x.shape for x in inputs if tf.is_tensor(x)]
                raise ExportError(
                    f"Expected layers whose code does not depend on values or open dimensions. "
                    f"The layer {call.path!r} ({type(call.core).__name__}) does, on inputs of "
                    f"shape {', '.join(map(str, shapes))}. Build the model with a fixed input size."
                ) from error
        if len(outputs) == 1 and call.path not in self.tensors.values():
            self.tensors.setdefault(outputs[0].name, call.path)
        return outputs


def _in_inference_mode(path: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a layer with ``training=False``.

    Without it, a layer may use training mode by default and pass it to its nested layers.
    """
    if kwargs.get("training"):
        logger.warning(
            "%s is called with training=True in the model. It is exported in inference mode.", path
        )
    return {**kwargs, "training": False}


def trace_model(model: Any, *, batch: int | None = None) -> Trace:
    """Trace ``model`` in inference mode, with float32 semantics.

    Args:
        model: built Keras Functional or Sequential model.
        batch: fixed batch size; None (default) leaves it open.

    Raises:
        UnsupportedModelError: the model has no graph of layers (a subclassed model), is not built,
            or is quantized by Keras.
    """
    if not isinstance(model, keras.Model) or not has_graph(model):
        raise UnsupportedModelError(
            f"Expected a Keras Functional or Sequential model. Received: {type(model).__name__}. "
            "Rebuild a subclassed model with the Functional API (keras.Input, layers, keras.Model)."
        )
    if not model.built:
        raise UnsupportedModelError(
            f"Expected a built model. {model.name!r} is not: call model.build(input_shape) or "
            "begin with keras.Input."
        )
    refuse_keras_quantized(model)
    refuse_scope_names(model)
    graph = LayerGraph(model)
    functional = functional_of(model)
    variables = _weight_variables(model)
    specs, weight_specs = [], []
    for index, x in enumerate(functional.inputs):
        specs.append(tf.TensorSpec((batch, *x.shape[1:]), x.dtype, name=f"in{index}"))
    # Inputs first: the order of the specs is the order of ``concrete.inputs`` below.
    for index, variable in enumerate(variables):
        dtype = float32_for(tf.as_dtype(variable.dtype))
        weight_specs.append(tf.TensorSpec(variable.shape, dtype, name=f"w{index}"))
    calls = _Calls()
    markers: dict[str, str] = {}

    def forward(inputs: list[Any], weights: list[Any]) -> list[Any]:
        with keras.StatelessScope() as state, export_mode() as found:
            for update in zip(variables, weights, strict=True):
                # ``state_mapping`` of the constructor would cast the weight to the variable's type.
                state.add_update(update)
            outputs = calls.run(graph, inputs)
            markers.update(found)
            return outputs

    with float32_semantics(model), merged_steps(model), whole_sequences(model) as recurrent:
        concrete = _concrete(forward, specs, weight_specs)
    names = [tensor.name for tensor in concrete.inputs]
    input_names = _unique([x.name for x in functional.inputs])
    output_names = _unique(functional.output_names)
    return Trace(
        graph_def=concrete.graph.as_graph_def(add_shapes=True),
        inputs=dict(zip(names, input_names, strict=False)),  # followed by the weights
        outputs=list(zip((y.name for y in concrete.outputs), output_names, strict=True)),
        weights=dict(
            zip(names[len(specs) :], [*variables, *concrete.captured_inputs], strict=True)
        ),
        scopes=calls.scopes,
        origins=calls.origins,
        markers=markers,
        recurrent=recurrent,
        operations=calls.operations,
        tensors=calls.tensors,
        shapes=_reshaped(concrete.graph),
    )


def _reshaped(graph: Any) -> dict[str, tuple[list[int | None], Any]]:
    """Return the static shape and data type of the output of each Reshape, by tensor."""
    shapes: dict[str, tuple[list[int | None], Any]] = {}
    for op in graph.get_operations():
        if op.type != "Reshape":
            continue
        (tensor,) = op.outputs
        if tensor.shape.rank is not None:
            dtype = np.dtype(float32_for(tensor.dtype).as_numpy_dtype)
            shapes[tensor.name] = (tensor.shape.as_list(), dtype)
    return shapes


def _concrete(forward: Callable[..., Any], specs: list[Any], weight_specs: list[Any]) -> Any:
    """Trace into one flat graph.

    Keras computes a grouped convolution in a separate compiled function, because TensorFlow has no
    CPU kernel for it, and tf2onnx does not support calls of such functions. With
    ``run_functions_eagerly``, the inner function is traced in place.
    """
    eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        return tf.function(forward, autograph=False).get_concrete_function(specs, weight_specs)
    finally:
        tf.config.run_functions_eagerly(eager)


def _weight_variables(model: Any) -> list[Any]:
    """Return the variables of the model except those of quantizers, represented by markers."""
    ranges: set[int] = set()
    for layer in layers_of(model):
        if isinstance(layer, TensorQuantizer):
            ranges.update(map(id, layer.variables))
    return [v for v in model.variables if id(v) not in ranges]


def _unique(names: list[str]) -> list[str]:
    """Return the names, with a number appended to duplicates."""
    result: list[str] = []
    for index, name in enumerate(names):
        result.append(name if name not in result else f"{name}_{index}")
    return result
