"""Graphs of calls that are written by hand, of no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qat_lib.graph.call_graph import CallGraph, Composite, GraphCall
from qat_lib.graph.roles import Role
from qat_lib.graph.traits import ExistingQuantizers, Support, Traits


@dataclass(frozen=True, eq=False, kw_only=True)
class HandMadeCall(GraphCall):
    known: Traits

    @property
    def traits(self) -> Traits:
        return self.known


class HandMadeCatalog:
    noun = "kit"

    def class_named(self, name: str) -> Any:
        return name if name in self.class_names() else None

    def class_names(self) -> list[str]:
        return ["Convolve", "Sum"]

    def remedy(self, name: str) -> str:
        return f"buy {name}"

    def advice(self, name: str) -> str:
        return f"Buy one for {name}."


class HandMadeGraph(CallGraph):
    """A graph that is made call by call."""

    catalog = HandMadeCatalog()

    def __init__(self, *names: str) -> None:
        self.model, self.name = object(), "hand_made"
        self.calls, self.inputs, self.outputs = (), (), ()
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.refused = 0
        for name in names:
            self.add(name, traits("Input", is_input=True))
            self.inputs += (f"{name}:0",)

    @property
    def composites(self) -> Mapping[str, Composite]:
        return {}

    def refuse_quantized(self) -> None:
        self.refused += 1

    def add(self, name: str, known: Traits, *inputs: str, outputs: int = 1) -> str:
        """Add a call that reads others' first outputs.

        ``"conv@1"`` calls ``conv`` again.
        """
        call = HandMadeCall(
            name=name,
            layer=name.partition("@")[0],
            operation=known,
            inputs=tuple(f"{source}:0" for source in inputs),
            outputs=tuple(f"{name}:{i}" for i in range(outputs)),
            known=known,
        )
        self.calls += (call,)
        for tensor in call.outputs:
            self.shapes[tensor], self.dtypes[tensor] = (None, 8), "float32"
        self.outputs = call.outputs
        return name


def traits(class_name: str, *roles: Role, **others: Any) -> Traits:
    return Traits(class_name=class_name, classes=(class_name,), roles=frozenset(roles), **others)


def convolution() -> Traits:
    support = Support(
        quantize_input=True, quantize_weight=True, plan_weights=lambda: {"kernel": (-1,)}
    )
    return traits("Convolve", "weighted", "convolution", kind="Conv2D", support=support)


def addition() -> Traits:
    return traits("Sum", "merge", "sign preserving", kind="Add", support=Support())


def concatenation() -> Traits:
    return traits("Join", "merge", kind="Concatenate", support=Support())


def pool() -> Traits:
    return traits("Pool", "range preserving", "max pool", support=Support())


def relu() -> Traits:
    return traits("Relu", "non-negative", "range preserving", activation="relu", is_layer=False)


def quantizer(options: Any) -> Traits:
    return traits("Quantizer", existing=ExistingQuantizers(inputs=(0,), quantizer=options))


def residual_graph() -> HandMadeGraph:
    """Two convolutions around which the tensor between pool and sum goes on."""
    graph = HandMadeGraph("x")
    graph.add("stem", convolution(), "x")
    graph.add("relu", relu(), "stem")
    graph.add("pool", pool(), "relu")
    graph.add("conv_a", convolution(), "pool")
    graph.add("conv_b", convolution(), "conv_a")
    graph.add("sum", addition(), "conv_b", "pool")
    graph.add("head", convolution(), "sum")
    return graph
