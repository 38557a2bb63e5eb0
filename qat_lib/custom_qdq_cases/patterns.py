"""The general cases: residual connections, free batch normalization, max pooling."""

from __future__ import annotations

from typing import Any

from keras import layers

from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.graph.layer_traits import CONVOLUTIONS, classes, is_identity
from qat_lib.spec import QuantizationSpec

ACTIVATIONS = classes("activation layer")


class ResidualConnectionQDQCase(CustomQDQInsertionCase):
    """Quantize the inputs of an Add except one from a convolution, which the Add fuses into.

    A convolution may be followed by batch normalization, an activation and dropout. With several
    convolution branches the last one stays unquantized; where an activation stands between
    (EfficientNet), the first.
    """

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Name every Add with the inputs that get a Q/DQ pair."""
        graph = LayerGraph(keras_model)
        found = QuantizationSpec()
        for call in graph.calls:
            if not isinstance(call.operation, layers.Add) or not check_is_quantizable_by_layer_name(
                qspec, call.layer
            ):
                continue
            branches = {
                i: has for i, t in enumerate(call.inputs) if (has := convolution_branch(graph, t))
            }
            chosen = list(range(len(call.inputs)))
            if branches:
                active = any(kind == "activated" for kind in branches.values())
                chosen.remove(min(branches) if active else max(branches))
            if chosen:
                found.add(call.layer, quantize_weight=False, quantization_index=chosen)
        return found


class BNQDQCase(CustomQDQInsertionCase):
    """Quantize the input of each batch normalization that can't fuse into a convolution."""

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Name every such BatchNormalization."""
        graph = LayerGraph(keras_model)
        found = QuantizationSpec()
        for call in graph.calls:
            if not isinstance(call.operation, layers.BatchNormalization):
                continue
            parent = graph.producer(call.inputs[0])
            if not is_convolution(parent) and check_is_quantizable_by_layer_name(qspec, call.layer):
                found.add(call.layer, quantize_weight=False)
        return found


class MaxPoolQDQCase(CustomQDQInsertionCase):
    """Quantize the input of every two-dimensional max pooling."""

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Name every MaxPooling2D."""
        found = QuantizationSpec()
        for name, layer in LayerGraph(keras_model).layers():
            if isinstance(layer, layers.MaxPooling2D) and check_is_quantizable_by_layer_name(
                qspec, name
            ):
                found.add(name, quantize_weight=False)
        return found


def is_convolution(call: Call) -> bool:
    """Whether the call is that of a convolution, transposed ones included."""
    return isinstance(call.core, CONVOLUTIONS)


def convolution_branch(graph: LayerGraph, tensor: str) -> str | None:
    """Return ``"plain"`` or ``"activated"`` if a convolution's chain ends in ``tensor``, else None.

    Plain chains are Conv and Conv-BN; activated ones Conv-BN-Activation, with dropout after it or
    not.
    """
    call = graph.producer(tensor)
    while is_identity(call.core) and call.inputs:
        call = graph.producer(call.inputs[0])
    activated = isinstance(call.core, ACTIVATIONS)
    if activated:
        call = graph.producer(call.inputs[0])
        if not isinstance(call.core, layers.BatchNormalization):
            return None
    if isinstance(call.core, layers.BatchNormalization):
        call = graph.producer(call.inputs[0])
    if not is_convolution(call):
        return None
    return "activated" if activated else "plain"
