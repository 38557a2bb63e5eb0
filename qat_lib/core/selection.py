"""Selection of the spec entry that decides about a layer.

Precedence, highest first: layer name, regular expression, class, default table; the user's spec
wins over a case. Among equals the last entry wins, and the last case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from qat_lib.core.spec import LayerConfig, QuantizationSpec
from qat_lib.errors import SpecError
from qat_lib.graph.catalog import Catalog
from qat_lib.graph.traits import Traits


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision about one layer: its entry, and a description of its origin."""

    config: LayerConfig
    source: str


class Selector:
    """Decides about layers from the user's spec, the specs of the cases and the default table.

    Args:
        mode: ``"full"`` or ``"partial"``; partial mode has no default table.
        spec: the user's spec, or None.
        catalog: the quantizable classes.
        cases: (name, spec) of each custom Q/DQ case.
        cpu: kind of CPU that will run the engine; the default table depends on it.

    Raises:
        SpecError: an entry names an unsupported class.
    """

    def __init__(
        self,
        mode: str,
        spec: QuantizationSpec | None,
        catalog: Catalog,
        cases: Iterable[tuple[str, QuantizationSpec]] = (),
        cpu: str | None = None,
    ) -> None:
        self.mode = mode
        self.cpu = cpu
        # Sources in order of precedence: `decide` takes the first hit.
        ranked = [(name, case.layers) for name, case in reversed(list(cases))]
        if spec is not None:
            ranked.insert(0, ("spec", spec.layers))
        self._sources = [(name, _Entries(entries, catalog)) for name, entries in ranked]

    def decide(self, layer: str, traits: Traits) -> Decision | None:
        """Return the decision about a layer, or None if nothing decides about it."""
        for name, entries in self._sources:
            config, how = entries.find(layer, traits)
            if config is not None:
                why = f", {config.reason}" if config.reason else ""
                return Decision(config=config, source=f"{name}: {how}{why}")
        support = traits.support
        # The default table comes last and exists in full mode only.
        if self.mode == "full" and support is not None and support.is_default(self.cpu):
            has_weight = support.quantize_weight or support.on_vnni
            config = LayerConfig(name=layer, quantize_weight=has_weight)
            return Decision(config=config, source="default")
        return None


class _Entries:
    """Entries of one spec by names, patterns and classes; later entries replace earlier ones."""

    def __init__(self, entries: Sequence[LayerConfig], catalog: Catalog) -> None:
        self.names = {e.name: e for e in entries if not e.is_keras_class and not e.is_regex}
        # Reversed, because `find` takes the first hit and the last entry wins.
        self.patterns = [(re.compile(e.name), e) for e in reversed(entries) if e.is_regex]
        self.classes: list[tuple[Any, LayerConfig]] = []
        for entry in reversed(entries):
            if entry.is_keras_class:
                self.classes.append((class_for(entry.name, catalog), entry))

    def find(self, layer: str, traits: Traits) -> tuple[LayerConfig | None, str]:
        if layer in self.names:
            return self.names[layer], f"layer {layer}"
        for pattern, entry in self.patterns:
            if pattern.fullmatch(layer):
                return entry, f"pattern {entry.name}"
        for known, entry in self.classes:
            if _is_class(traits, known):
                return entry, f"class {entry.name}"
        return None, ""


def class_for(name: str, catalog: Catalog) -> Any:
    """Return the class for ``name``, or the class name where the framework has names only.

    Raises:
        SpecError: no class of that name is supported.
    """
    found = catalog.class_named(name)
    if found is None:
        near = difflib.get_close_matches(name, catalog.class_names(), n=3)
        hint = (
            f" Did you mean {', '.join(near)}?"
            if near
            else f" Supported: {', '.join(catalog.class_names())}."
        )
        raise SpecError(
            f"No {catalog.noun} supports the layer class {name!r}.{hint} {catalog.advice(name)}"
        )
    return found


def _is_class(traits: Traits, known: Any) -> bool:
    if isinstance(known, str):
        return any(getattr(base, "__name__", base) == known for base in traits.classes)
    return known in traits.classes


def check_names(spec: QuantizationSpec | None, layers: Sequence[str], model: str) -> None:
    """Check that each name and pattern of a spec matches a layer.

    Raises:
        SpecError: names or patterns match no layer; the message suggests the nearest layer.
    """
    known, problems = set(layers), []
    for entry in spec.layers if spec is not None else ():
        if entry.is_keras_class or entry.name in known:
            continue
        if entry.is_regex and any(re.fullmatch(entry.name, layer) for layer in layers):
            continue
        near = difflib.get_close_matches(entry.name, layers, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        problems.append(f"{'pattern' if entry.is_regex else 'layer'} {entry.name!r}{hint}")
    if problems:
        raise SpecError(
            f"The quantization spec names layers that {model} lacks: {', '.join(problems)}. "
            "Correct or remove these entries; the plan lists the layers of a model (qatline "
            "quantize MODEL.keras)."
        )
