"""What TensorRT fuses into the kernel of a convolution or Dense, in Keras's terms.

The rules are those of the TensorRT developer guide ("Explicit Quantization") and of engines whose
layers were read; ``qat_lib.analysis`` applies the same ones to ONNX.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.graph.layer_traits import WEIGHTED, classes, is_identity
from qat_lib.graph.roles import activation_functions, keras_operators, rows

DEPTHWISE = classes("depthwise")
EPILOGUE = activation_functions("epilogue")
"""Activations that a weighted layer's kernel applies before it writes."""
AFTER_ADD = activation_functions("after add")
"""Activations that stay in one kernel with an addition or a normalization in front of them."""
GATED = activation_functions("gated")
"""Products of x and a function of x: a depthwise convolution's kernel does not take them
(NVIDIA/TensorRT#3205)."""
AFFINE_OPERATORS = keras_operators("arithmetic")
FUNCTIONS = {
    operator: function
    for row in rows("activation")
    for operator, function in zip(row.operators, row.functions, strict=True)
}
"""Bare operation -> the activation function that it is."""


def activation_of(operation: Any) -> str | None:
    """Return the activation function that the operation is, such as ``"relu"``, or None."""
    if isinstance(operation, layers.Activation):
        return getattr(operation.activation, "__name__", None)
    # The layer, and what keras.activations.relu leaves in a graph.
    if type(operation).__name__ == "ReLU":
        return (
            "relu6"
            if operation.max_value is not None
            else "leaky_relu"
            if operation.negative_slope
            else "relu"
        )
    if isinstance(operation, layers.LeakyReLU):
        return "leaky_relu"
    if isinstance(operation, layers.ELU):
        return "elu"
    if isinstance(operation, keras.layers.Layer):
        return None
    return FUNCTIONS.get(type(operation).__name__)


def is_affine(call: Call) -> bool:
    """Whether the call scales or shifts its one input by constants."""
    if isinstance(call.core, layers.Rescaling) or type(call.core).__name__ == "LayerScale":
        return True
    is_operator = not isinstance(call.core, keras.layers.Layer)
    return is_operator and len(call.inputs) == 1 and type(call.core).__name__ in AFFINE_OPERATORS


def is_addition(operation: Any) -> bool:
    """Whether the operation adds tensors: Add, ``x + y``, InceptionResNet's scaled residual."""
    return is_merge(operation, layers.Add, "Add") or type(operation).__name__ == "CustomScaleLayer"


def is_merge(operation: Any, layer_class: type, operator: str) -> bool:
    """Whether the operation is a layer of that class, or the bare operation of that name."""
    if isinstance(operation, keras.layers.Layer):
        return isinstance(operation, layer_class)
    return type(operation).__name__ == operator


def is_self_gate(graph: LayerGraph, call: Call) -> bool:
    """Whether this is ``x * f(x)`` with pointwise ``f``, which fuses into the kernel of ``x``."""
    roots = []
    for tensor in call.inputs:
        producer = graph.producer(tensor)
        while len(producer.inputs) == 1 and (
            activation_of(producer.core) is not None or is_affine(producer)
        ):
            tensor = producer.inputs[0]
            producer = graph.producer(tensor)
        roots.append(tensor)
    return len(set(roots)) == 1


def is_weighted(call: Call) -> bool:
    """Whether a kernel with weights makes the output: convolution, Dense, attention."""
    return isinstance(call.core, (*WEIGHTED, layers.MultiHeadAttention))


def chain_root(graph: LayerGraph, tensor: str, *, sole: bool = False) -> Call | None:
    """Return the weighted layer whose kernel writes ``tensor``; None if another kernel does.

    The kernel may go on with normalization, scales, activations and what is the identity at
    inference. With ``sole`` nothing else may read any tensor on the way.
    """
    passed: set[str] = set()
    while True:
        if sole and (len(graph.consumers(tensor)) != 1 or tensor in graph.outputs):
            return None
        call = graph.producer(tensor)
        if is_weighted(call):
            own = getattr(call.core, "activation", None)
            if own is not None and own is not keras.activations.linear:
                passed.add(own.__name__)
            return call if passed <= _accepted(call.core) else None
        activation = activation_of(call.core)
        if is_identity(call.core) and len(call.inputs) == 1:
            pass
        elif activation is not None:
            passed.add(activation)
        elif not isinstance(call.core, layers.BatchNormalization) and not is_affine(call):
            return None
        tensor = call.inputs[0]


def _accepted(operation: Any) -> frozenset[str]:
    depthwise = isinstance(operation, DEPTHWISE)
    grouped = getattr(operation, "groups", 1) > 1 and operation.groups == getattr(
        operation, "filters", 0
    )
    return EPILOGUE - GATED if depthwise or grouped else EPILOGUE
