"""General cases: residual connections, free batch normalization, max pooling."""

from __future__ import annotations

from typing import Any

from qat_lib.core.spec import QuantizationSpec
from qat_lib.custom_qdq_cases.base import CustomQDQInsertionCase, check_is_quantizable_by_layer_name
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.reading import read_graph
from qat_lib.graph.traits import Traits


class ResidualConnectionQDQCase(CustomQDQInsertionCase):
    """Quantize an Add's inputs except the convolution that it fuses into.

    Batch normalization, an activation and dropout may follow the convolution. With several
    convolution branches, the last one remains unquantized; if an activation lies between
    (EfficientNet), the first one does.
    """

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return an entry for every Add, with the inputs that get a Q/DQ pair."""
        graph = read_graph(keras_model)
        found = QuantizationSpec()
        for call in graph.calls:
            if not is_supported(call.traits, "Add"):
                continue
            if not check_is_quantizable_by_layer_name(qspec, call.layer):
                continue
            branches = {
                i: has for i, t in enumerate(call.inputs) if (has := convolution_branch(graph, t))
            }
            chosen = list(range(len(call.inputs)))
            if branches:
                active = any(kind == "activated" for kind in branches.values())
                # The branch without Q/DQ fuses with the Add.
                chosen.remove(min(branches) if active else max(branches))
            if chosen:
                found.add(call.layer, quantize_weight=False, quantization_index=chosen)
        return found


class BNQDQCase(CustomQDQInsertionCase):
    """Quantize inputs of batch normalizations that fuse into no convolution."""

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return an entry for every such BatchNormalization."""
        graph = read_graph(keras_model)
        found = QuantizationSpec()
        for call in graph.calls:
            if not is_supported(call.traits, "BatchNormalization"):
                continue
            parent = graph.producer(call.inputs[0])
            if not is_convolution(parent) and check_is_quantizable_by_layer_name(qspec, call.layer):
                found.add(call.layer, quantize_weight=False)
        return found


class MaxPoolQDQCase(CustomQDQInsertionCase):
    """Quantize the input of every two-dimensional max pooling."""

    def case(self, keras_model: Any, qspec: QuantizationSpec) -> QuantizationSpec:
        """Return an entry for every MaxPooling2D."""
        found = QuantizationSpec()
        for call in read_graph(keras_model).first_calls():
            is_pool = is_supported(call.traits, "MaxPooling2D")
            if is_pool and check_is_quantizable_by_layer_name(qspec, call.layer):
                found.add(call.layer, quantize_weight=False)
        return found


def is_supported(traits: Traits, kind: str) -> bool:
    """Return whether an operation is of a kind, quantizable, and not quantized yet."""
    return traits.kind == kind and traits.support is not None and not traits.is_wrapped


def is_convolution(call: GraphCall) -> bool:
    """Return whether the call is a convolution, transposed ones included."""
    return "convolution" in call.traits.roles


def convolution_branch(graph: CallGraph, tensor: str) -> str | None:
    """Return the kind of the convolution chain that ends in ``tensor``, or None without one.

    The kinds are ``"plain"`` (Conv, Conv-BN) and ``"activated"`` (Conv-BN-Activation, optionally
    with dropout behind).
    """
    call = graph.producer(tensor)
    while call.traits.is_identity and call.inputs:
        call = graph.producer(call.inputs[0])
    # Walk up against the order of the chain: activation, normalization, convolution.
    activated = "activation layer" in call.traits.roles
    if activated:
        call = graph.producer(call.inputs[0])
        if call.traits.kind != "BatchNormalization":
            return None
    if call.traits.kind == "BatchNormalization":
        call = graph.producer(call.inputs[0])
    if not is_convolution(call):
        return None
    return "activated" if activated else "plain"
