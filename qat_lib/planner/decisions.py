"""Decisions about layers, with the reasons for unquantized ones."""

from __future__ import annotations

from qat_lib.core.plan import SkippedLayer
from qat_lib.core.selection import Decision, Selector
from qat_lib.custom_qdq_cases.fusion import adds_without_broadcast, chain_root, is_addition
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.traits import Traits
from qat_lib.planner.inside import decide_inside, decision_outside

Decided = tuple[dict[str, Decision], dict[str, Decision], list[SkippedLayer]]


def decide(graph: CallGraph, selector: Selector) -> Decided:
    """Return the decisions about layers, about inner layers, and the unquantized layers.

    The keys are layer names, and ``"<layer>/<inner layer>"`` for layers inside composites.
    """
    decided: dict[str, Decision] = {}
    inner: dict[str, Decision] = {}
    skipped: list[SkippedLayer] = []
    for call in graph.first_calls():
        layer, traits = call.layer, call.traits
        if traits.is_input:
            continue
        if layer not in graph.live:
            skipped.append(
                SkippedLayer(
                    layer=layer,
                    class_name=traits.class_name,
                    reason="not quantizable",
                    detail="no output of the model depends on it",
                )
            )
            continue
        decision = selector.decide(layer, traits)
        if (composite := graph.composites.get(layer)) is not None and not _excludes(decision):
            found, left = decide_inside(layer, composite, selector, decision)
            inner |= found
            skipped += left
            if found:
                decided[layer] = decision_outside(layer, composite, found)
                continue
            # Nothing inside is quantized, so the composite is reported like a layer without a
            # decision.
            decision = None
        # The order of these tests decides the reported reason: the first one that applies wins.
        if traits.existing is not None:
            reason, detail = "quantized already", "keeps its quantizers"
        elif decision is None:
            reason, detail = _why_not(graph, call, decided, selector)
        elif layer in graph.composites:
            reason, detail = "excluded", decision.source
        elif traits.support is None and traits.is_layer:
            reason, detail = "unsupported", _what_is_missing(graph, traits)
        elif not decision.config.quantize_input and not (
            decision.config.quantize_weight and traits.weights()
        ):
            reason, detail = "excluded", decision.source
        else:
            decided[layer] = decision
            continue
        skipped.append(
            SkippedLayer(layer=layer, class_name=traits.class_name, reason=reason, detail=detail)
        )
    return decided, inner, skipped


def _excludes(decision: Decision | None) -> bool:
    return (
        decision is not None
        and not decision.config.quantize_input
        and not decision.config.quantize_weight
    )


def _what_is_missing(graph: CallGraph, traits: Traits) -> str:
    name = traits.class_name
    if traits.obstacle:
        return traits.obstacle
    return f"no {graph.catalog.noun} for {name}; {graph.catalog.remedy(name)} to add one"


def _why_not(
    graph: CallGraph, call: GraphCall, decided: dict[str, Decision], selector: Selector
) -> tuple[str, str]:
    traits = call.traits
    if traits.preserves_range:
        return "range-preserving", "keeps the quantizer of its input"
    if (kernel := _kernel_around(graph, call)) is not None and (
        kernel.layer in decided or kernel.traits.is_wrapped
    ):
        return "fused", f"runs in the kernel of {kernel.layer}"
    if traits.obstacle:
        return "not quantizable", f"runs in float: {traits.obstacle}"
    if traits.support is None:
        return "not quantizable", f"runs in float{_weights_inside(graph, traits)}"
    if selector.mode == "partial":
        return "not named", "partial mode quantizes only layers that the spec or a case names"
    return (
        "off by default",
        f"{_why_off(graph, call, selector)}name it in a spec or a case to quantize it",
    )


def _why_off(graph: CallGraph, call: GraphCall, selector: Selector) -> str:
    """Return the default table's reason against a call, as the start of a sentence."""
    if "transposed" in call.traits.roles:
        if selector.cpu is None:
            why = "TensorRT has few INT8 kernels of transposed convolutions, some slower than float"
        elif selector.cpu == "vnni":
            why = "INT8 kernels of groups, windows above 4 and steps above 2 are slow or wrong"
        else:
            why = f"{selector.cpu} CPUs compute most transposed convolutions faster in float"
        return f"{why}; "
    if call.traits.support is not None and call.traits.support.quantize_input:
        # Only the CPU turns off a layer of the default table.
        return (
            f"its {call.traits.support.channels} channels leave 7 bits to INT8 weights on "
            f"{selector.cpu} CPUs, and float is as fast; "
        )
    if is_addition(call):
        shapes = [graph.shapes.get(tensor) for tensor in call.inputs]
        # Unknown shapes are left out: they do not prove a broadcast.
        if not adds_without_broadcast([shape for shape in shapes if shape is not None]):
            return "it broadcasts an operand, so that no convolution's kernel computes it; "
    return ""


def _weights_inside(graph: CallGraph, traits: Traits) -> str:
    """Describe the weighted layers that a layer keeps in float, and the remedy."""
    inside = traits.inside
    if not inside:
        return ""
    shown = ", ".join(inside[:4]) + (f" and {len(inside) - 4} more" if len(inside) > 4 else "")
    remedy = graph.catalog.remedy(traits.class_name)
    return f", with the weights of {shown} inside; {remedy} to quantize them"


def _kernel_around(graph: CallGraph, call: GraphCall) -> GraphCall | None:
    """Return the layer whose kernel fuses the call, such as the convolution in front of it."""
    if len(call.inputs) != 1 or len(call.outputs) != 1:
        return None
    # Without another reader of a tensor on the way, which the kernel would have to write, too.
    root = chain_root(graph, call.outputs[0])
    return (
        root if root is not None and root is chain_root(graph, call.inputs[0], sole=True) else None
    )
