"""What happens to each layer: the decision about it, or the named reason why it is not quantized."""

from __future__ import annotations

from typing import Any

import keras

from qat_lib.custom_qdq_cases.fusion import chain_root
from qat_lib.graph.keras_graph import layers_inside
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.graph.layer_traits import WEIGHTED, preserves_range
from qat_lib.plan import SkippedLayer
from qat_lib.planner.inside import decide_inside, decision_outside
from qat_lib.quantize_wrappers import REGISTRY, BaseQuantizeWrapper, WeightedBaseQuantizeWrapper
from qat_lib.quantizers import TensorQuantizer
from qat_lib.selection import Decision, Selector

Decided = tuple[dict[str, Decision], dict[str, Decision], list[SkippedLayer]]


def decide(graph: LayerGraph, selector: Selector, mode: str) -> Decided:
    """Return the decision about each quantized layer, by name, and the layers not quantized.

    Between the two stand the decisions about layers inside of composite ones, by ``"<layer>/<inner
    layer>"``.
    """
    decided: dict[str, Decision] = {}
    inner: dict[str, Decision] = {}
    skipped: list[SkippedLayer] = []
    for layer, operation in graph.layers():
        if isinstance(operation, keras.layers.InputLayer):
            continue
        decision = selector.decide(layer, operation)
        if (composite := graph.composites.get(layer)) is not None and not _excludes(decision):
            found, left = decide_inside(layer, composite, selector, decision)
            inner |= found
            skipped += left
            if found:
                decided[layer] = decision_outside(layer, composite, found)
                continue
            decision = None
        if isinstance(operation, BaseQuantizeWrapper | TensorQuantizer):
            reason, detail = "quantized already", "keeps its quantizers"
        elif decision is None:
            reason, detail = _why_not(graph, graph.by_name[layer], decided, mode)
        elif layer in graph.composites:
            reason, detail = "excluded", decision.source
        elif REGISTRY.find(type(operation)) is None and isinstance(operation, keras.layers.Layer):
            name = type(operation).__name__
            reason, detail = (
                "unsupported",
                f"no wrapper for {name}; define {name}QuantizeWrapper to add one",
            )
        elif not decision.config.quantize_input and not (
            decision.config.quantize_weight and kernels(operation)
        ):
            reason, detail = "excluded", decision.source
        else:
            decided[layer] = decision
            continue
        skipped.append(
            SkippedLayer(
                layer=layer, class_name=type(operation).__name__, reason=reason, detail=detail
            )
        )
    return decided, inner, skipped


def _excludes(decision: Decision | None) -> bool:
    return (
        decision is not None
        and not decision.config.quantize_input
        and not decision.config.quantize_weight
    )


def kernels(operation: Any) -> dict[str, tuple[int, ...] | None]:
    """Return the weights of a layer that can be quantized, with the axes that keep a range."""
    wrapper = REGISTRY.find(type(operation))
    if wrapper is None or not issubclass(wrapper, WeightedBaseQuantizeWrapper):
        return {}
    found: dict[str, tuple[int, ...] | None] = wrapper(operation).planned_weights()
    return found


def _why_not(
    graph: LayerGraph, call: Call, decided: dict[str, Decision], mode: str
) -> tuple[str, str]:
    if preserves_range(call.operation):
        return "range-preserving", "keeps the quantizer of its input"
    if (kernel := _kernel_around(graph, call)) is not None and (
        kernel.layer in decided or isinstance(kernel.operation, BaseQuantizeWrapper)
    ):
        return "fused", f"runs in the kernel of {kernel.layer}"
    if REGISTRY.find(type(call.operation)) is None:
        return "not quantizable", f"runs in float{_weights_inside(call.operation)}"
    if mode == "partial":
        return "not named", "partial mode quantizes only what the spec or a case names"
    return "off by default", "name it in a spec or a case to quantize it"


def _weights_inside(operation: Any) -> str:
    """Return in words which weighted layers a layer keeps in float, and what to do."""
    if not isinstance(operation, keras.layers.Layer):
        return ""
    inside = [x.name for x in layers_inside(operation) if isinstance(x, WEIGHTED)]
    if not inside:
        return ""
    shown = ", ".join(inside[:4]) + (f" and {len(inside) - 4} more" if len(inside) > 4 else "")
    wrapper = f"{type(operation).__name__}QuantizeWrapper"
    return f", with the weights of {shown} inside; define {wrapper} to quantize them"


def _kernel_around(graph: LayerGraph, call: Call) -> Call | None:
    """Return the layer whose kernel fuses the call, such as the convolution in front."""
    if len(call.inputs) != 1 or len(call.outputs) != 1:
        return None
    root = chain_root(graph, call.outputs[0])
    return (
        root if root is not None and root is chain_root(graph, call.inputs[0], sole=True) else None
    )
