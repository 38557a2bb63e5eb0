"""Decisions about layers inside a composite, and about the composite's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qat_lib.core.plan import SkippedLayer
from qat_lib.core.selection import Decision, Selector
from qat_lib.core.spec import LayerConfig
from qat_lib.graph.call_graph import Composite
from qat_lib.graph.traits import Traits


def decide_inside(
    layer: str, composite: Composite, selector: Selector, about_all: Decision | None
) -> tuple[dict[str, Decision], list[SkippedLayer]]:
    """Return the decisions about inner layers, by ``"<layer>/<path>"``, and the unquantized ones.

    Args:
        layer: name of the composite.
        composite: contents of the composite.
        selector: decides about each inner layer, by that name and by class.
        about_all: decision about the composite; it applies to inner layers without a more specific
            one.
    """
    decided: dict[str, Decision] = {}
    skipped: list[SkippedLayer] = []
    for path, traits in composite.layers.items():
        name = f"{layer}/{path}"
        decision = selector.decide(name, traits)
        if (
            about_all is not None
            and _is_on(traits)
            and (decision is None or decision.source == "default")
        ):
            # The index counts inputs of the composite, not of the inner layer.
            decision = replace(about_all, config=replace(about_all.config, quantization_index=None))
        if decision is None:
            reason, detail = "off by default", "name it in a spec or a case to quantize it"
        elif path in composite.opaque:
            reason, detail = "not quantizable", f"runs in float: {composite.opaque[path]}"
        elif not decision.config.quantize_input and not decision.config.quantize_weight:
            reason, detail = "excluded", decision.source
        else:
            decided[name] = decision
            continue
        skipped.append(
            SkippedLayer(layer=name, class_name=traits.class_name, reason=reason, detail=detail)
        )
    return decided, skipped


def decision_outside(layer: str, composite: Composite, inside: Mapping[str, Decision]) -> Decision:
    """Return the decision about a composite layer.

    It quantizes the inputs that quantized inner layers read.
    """
    readers: dict[int, list[Decision]] = {}
    for index, paths in composite.inputs.items():
        found = [inside[name] for path in paths if (name := f"{layer}/{path}") in inside]
        if wanted := [decision for decision in found if decision.config.quantize_input]:
            readers[index] = wanted
    # Only weights are quantized, or the inner layers read inner tensors.
    if not readers:
        config = LayerConfig(name=layer, quantize_input=False)
        return Decision(config=config, source=next(iter(inside.values())).source)
    first = next(iter(readers.values()))[0]
    config = replace(
        first.config, quantization_index=tuple(readers), is_regex=False, is_keras_class=False
    )
    return replace(first, config=config)


def _is_on(traits: Traits) -> bool:
    return traits.support is not None and traits.support.quantize_input
