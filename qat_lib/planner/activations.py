"""Plan entries of tensors between layers, and the shared ranges of Concatenates.

A Concatenate runs in INT8 only if its inputs have one range.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from qat_lib.core.plan import Consumer, QuantizerEntry
from qat_lib.core.selection import Decision
from qat_lib.core.spec import LayerConfig
from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.roles import activation_functions
from qat_lib.planner.wants import Wants, agreed

_DEFAULTS = LayerConfig(name="default", num_bits=8, range_policy="ema")
NON_NEGATIVE = activation_functions("non-negative")


def activation_entries(
    wants: Wants, *, unsigned: bool = False, taken: Collection[str] = ()
) -> Iterator[QuantizerEntry]:
    """Yield one entry for each quantized tensor, in model order.

    Args:
        wants: requested quantizers, by tensor.
        unsigned: whether non-negative tensors get unsigned quantizers; in a tied group only if all
            of its tensors are non-negative.
        taken: reserved quantizer names, in addition to the names of the layers.

    Raises:
        SpecError: the readers of a tensor request different options.
    """
    found = _Tensors(wants)
    names: dict[str, str] = {}
    used = {name for name, _ in wants.graph.layers()} | set(taken)
    for root in found.in_order():
        key = found.key(root)
        if key not in found.asked_for:
            continue  # An existing quantizer of the model that no decision requests.
        if key not in names:
            kept = found.kept.get(key)
            names[key] = _free_name(root, used) if kept is None else kept.layer
        yield found.entry(root, names[key], unsigned=unsigned)


class _Tensors:
    """Quantized tensors and the properties of their tied groups.

    The key of a group is its name; an untied tensor is its own key.
    """

    def __init__(self, wants: Wants) -> None:
        self.graph: CallGraph = wants.graph
        self.groups = tied_groups(wants)
        self.readers: dict[str, dict[Consumer, Decision | None]] = {}
        # Existing quantizers of the model, by group.
        self.kept: dict[str, GraphCall] = {}
        self.maxima: dict[str, str] = {}
        self.signed: set[str] = set()
        # Groups with a tensor that a decision quantizes.
        self.asked_for: set[str] = set()
        for tensor in wants.readers:
            self._add_readers(wants, tensor)
        # A group is signed if one of its tensors may be negative, because its quantizers share a
        # range.
        non_negative = non_negative_tensors(self.graph)
        for root, consumers in self.readers.items():
            if any(consumers.values()):
                self.asked_for.add(self.key(root))
            if root not in non_negative:
                self.signed.add(self.key(root))
            maximum = maximum_behind(self.graph, consumers)
            if maximum is not None:
                self.maxima.setdefault(self.key(root), maximum)

    def _add_readers(self, wants: Wants, tensor: str) -> None:
        root = wants.root(tensor)
        readers = self.readers.setdefault(root, {})
        for consumer, decision in wants.path(root, tensor):
            # Several tensors may arrive through one reader: its first decision gives the reason.
            readers[consumer] = readers.get(consumer) or decision
        for consumer, _ in wants.readers[tensor]:
            call = self.graph.by_name[consumer.layer]
            if call.traits.is_quantizer:
                self.kept.setdefault(self.key(root), call)

    def key(self, root: str) -> str:
        """Return the tied group of a tensor, or the tensor itself."""
        return self.groups.get(root, root)

    def in_order(self) -> list[str]:
        """Return the tensors in the order of the calls."""
        return sorted(self.readers, key=self.graph.order.__getitem__)

    def entry(self, root: str, name: str, *, unsigned: bool) -> QuantizerEntry:
        key = self.key(root)
        kept = self.kept.get(key)
        options: Any = _DEFAULTS if kept is None else kept.traits.quantizer
        configs = [decision.config for decision in self.readers[root].values() if decision]
        from_zero = self._is_unsigned(root, unsigned)
        reasons = self._reasons(root)
        if from_zero:
            reasons.append("never negative: unsigned")
        calibrator = agreed(configs, "calibrator", root) or options.calibrator
        # An explicit calibrator wins over the rule for wide maxima.
        if calibrator is None and key in self.maxima:
            calibrator = "max"
            reasons.append(f"{self.maxima[key]} takes its maximum: not clipped")
        return QuantizerEntry(
            name=name,
            kind="activation",
            tensor=root,
            consumers=tuple(self.readers[root]),
            # Only tied tensors are in the mapping; an untied tensor is its own key.
            group=f"{key} (Concatenate)" if root in self.groups else None,
            num_bits=agreed(configs, "num_bits", root) or options.num_bits,
            unsigned=from_zero,
            calibrator=calibrator,
            range_policy=agreed(configs, "range_policy", root) or options.range_policy,
            reason="; ".join(reasons) or "quantized already",
        )

    def _is_unsigned(self, root: str, unsigned: bool) -> bool:
        """Return whether the tensor gets unsigned integers.

        An existing quantizer keeps its sign, unless it is also tied to a tensor that may be
        negative.
        """
        kept = self.kept.get(self.key(root))
        if kept is None:
            return unsigned and self.key(root) not in self.signed
        serves_it_alone = root not in self.groups
        return bool(kept.traits.quantizer.unsigned) and (
            serves_it_alone or self.key(root) not in self.signed
        )

    def _reasons(self, root: str) -> list[str]:
        """Return the requests for the quantizer, without duplicates."""
        # A dict as an ordered set.
        reasons: dict[str, None] = {}
        for consumer, decision in self.readers[root].items():
            if decision is not None:
                text = f"input {consumer.input} of {consumer.layer} ({decision.source})"
                reasons[text] = None
        return list(reasons)


def _free_name(tensor: str, taken: set[str]) -> str:
    """Reserve and return a free quantizer name derived from the tensor's.

    The name is added to ``taken``.
    """
    # "<layer>@1:0" is output 0 of the second call of a shared layer.
    call, _, index = tensor.rpartition(":")
    base = call.replace("@", "_call") + (f"_{index}" if index != "0" else "")
    name = f"{base}_quantizer"
    suffix = 1
    while name in taken:
        name, suffix = f"{base}_quantizer_{suffix}", suffix + 1
    taken.add(name)
    return name


def non_negative_tensors(graph: CallGraph) -> frozenset[str]:
    """Return the tensors that are non-negative by their layers, for any weights."""
    found: set[str] = set()
    for call in graph.calls:
        if _is_non_negative(call, [tensor in found for tensor in call.inputs]):
            found.update(call.outputs)
    return frozenset(found)


def _is_non_negative(call: GraphCall, inputs: list[bool]) -> bool:
    """Return whether a call's outputs are non-negative.

    Args:
        call: the call.
        inputs: whether each input is non-negative.
    """
    traits = call.traits
    if traits.is_input:
        return False
    if "non-negative" in traits.roles or traits.own_activation in NON_NEGATIVE:
        return True
    if traits.is_quantizer:
        return traits.quantizer.unsigned or inputs[0]
    # One non-negative operand bounds the maximum from below.
    if traits.kind == "Maximum" and any(inputs):
        return True
    return bool(inputs) and all(inputs) and _keeps_sign(call)


def _keeps_sign(call: GraphCall) -> bool:
    """Return whether non-negative inputs give non-negative outputs."""
    roles = call.traits.roles
    # With one tensor, the other operand is a constant, of any sign.
    if "merge" in roles:
        return "sign preserving" in roles and len(call.inputs) > 1
    return "sign preserving" in roles or "range preserving" in roles


def maximum_behind(graph: CallGraph, consumers: Iterable[Consumer]) -> str | None:
    """Return the wide maximum that reads a quantized tensor, or None.

    A percentile clips few of a tensor's values, but most of the maxima over many values.

    Args:
        graph: the model.
        consumers: readers of the quantized tensor; range-preserving readers are followed.
    """
    open_calls = [graph.by_name[consumer.layer] for consumer in consumers]
    while open_calls:
        call = open_calls.pop()
        if "wide maximum" in call.traits.roles:
            return call.name
        if call.traits.preserves_range:
            for tensor in call.outputs:
                open_calls += [reader for reader, _ in graph.consumers(tensor)]
    return None


def tied_groups(wants: Wants) -> dict[str, str]:
    """Return the tied group of each tied tensor, named after the group's first tensor."""
    order = wants.graph.order
    parent: dict[str, str] = {}

    # Union-find: tensors of several Concatenates end up in one group.
    def find(tensor: str) -> str:
        while parent.get(tensor, tensor) != tensor:
            tensor = parent[tensor]
        return tensor

    for call in wants.graph.calls:
        traits = call.traits
        if not traits.is_concatenate or traits.is_wrapped:
            continue
        members = _members(wants, call)
        roots = sorted({find(member) for member in members}, key=order.__getitem__)
        for member in roots:
            parent[member] = roots[0]
        for member in members:
            parent.setdefault(member, roots[0])
    return {tensor: find(tensor) for tensor in parent}


def _members(wants: Wants, call: GraphCall) -> list[str]:
    """Return the tensors that a Concatenate ties; empty unless all of its inputs are quantized."""
    members = []
    any_wanted = False
    for index, tensor in enumerate(call.inputs):
        consumers = [consumer for consumer, _ in wants.readers.get(tensor, ())]
        wanted = Consumer(layer=call.name, input=index) in consumers
        # The input may have a quantizer already, which counts as quantized.
        quantizer = wants.graph.quantizer_on(tensor)
        if not wanted and quantizer is None:
            return []
        any_wanted = any_wanted or wanted
        members.append(wants.root(tensor if quantizer is None else quantizer.inputs[0]))
    # All inputs have existing quantizers, which keep their ranges.
    if not any_wanted:
        return []
    return members + [tensor for tensor in call.outputs if tensor in wants.readers]
