"""CallGraph: read-only view of a model as calls and tensors.

Nested models are flattened. Each framework has its own reader: ``qat_lib.keras.graph.layer_graph``
for Keras, ``qat_lib.torch.graph`` for PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from qat_lib.graph.catalog import Catalog
from qat_lib.graph.traits import Traits


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphCall(ABC):
    """One call of a layer, module or function.

    Attributes:
        name: unique name of the call: the layer's, and ``layer@1``, ``layer@2`` for further calls
            of a shared one.
        layer: unique name of the layer.
        operation: the layer, module or function itself.
        inputs: names of the input tensors, in argument order.
        outputs: names of the output tensors: ``"<call>:<index>"``.
    """

    name: str
    layer: str
    operation: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """Traits of the operation, or of a quantize wrapper's inner layer."""


@dataclass(frozen=True, kw_only=True)
class Composite:
    """Inputs of the weighted layers inside a composite.

    Attributes:
        layers: the inner layers with quantizable weights, by path.
        inputs: numbers of the composite's inputs, each with the paths of its inner readers.
        groups: paths of inner layers that share an inner input tensor; each path is in one group.
        opaque: paths of inner layers with an unquantizable input, each with the reason.
        last: paths of the inner layers that write the composite's outputs, without an activation or
            a normalization behind them.
    """

    layers: Mapping[str, Traits]
    inputs: Mapping[int, tuple[str, ...]]
    groups: tuple[tuple[str, ...], ...]
    opaque: Mapping[str, str]
    last: tuple[str, ...] = ()


class CallGraph(ABC):
    """The flat graph of a model.

    Attributes:
        model: the model.
        name: the model's name.
        calls: the calls, in topological order.
        inputs: names of the model's input tensors.
        outputs: names of the model's output tensors.
        shapes: known shapes, by tensor.
        dtypes: data types, by tensor.
        catalog: the quantizable classes of this framework.
    """

    model: Any
    name: str
    calls: tuple[GraphCall, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int | None, ...]]
    dtypes: Mapping[str, str]
    catalog: Catalog

    @property
    @abstractmethod
    def composites(self) -> Mapping[str, Composite]:
        """Unquantizable layers with quantizable weighted layers inside, by name."""

    @abstractmethod
    def refuse_quantized(self) -> None:
        """Reject a model with weights that another tool has quantized.

        Raises:
            UnsupportedModelError: the model has such weights.
        """

    def __repr__(self) -> str:
        """Return the name of the model and the number of calls."""
        return f"<{type(self).__name__} of {self.name!r}: {len(self.calls)} calls>"

    @cached_property
    def by_name(self) -> dict[str, GraphCall]:
        """Calls by name; the first call of a layer has the layer's name."""
        return {call.name: call for call in self.calls}

    @cached_property
    def _producers(self) -> dict[str, GraphCall]:
        found: dict[str, GraphCall] = {}
        for call in self.calls:
            found.update(dict.fromkeys(call.outputs, call))
        return found

    @cached_property
    def _consumers(self) -> dict[str, list[tuple[GraphCall, int]]]:
        # Tensors without a reader have an entry, too: `consumers` never fails for a tensor of the
        # graph.
        found: dict[str, list[tuple[GraphCall, int]]] = {tensor: [] for tensor in self._producers}
        for call in self.calls:
            for index, tensor in enumerate(call.inputs):
                found[tensor].append((call, index))
        return found

    @cached_property
    def order(self) -> dict[str, int]:
        """Position of each tensor in the order of the calls."""
        found: dict[str, int] = {}
        for index, call in enumerate(self.calls):
            found.update(dict.fromkeys(call.outputs, index))
        return found

    @cached_property
    def live(self) -> frozenset[str]:
        """Layers with an effect on the outputs; others exist in nested models with unused outputs."""
        waiting, seen, layers = list(self.outputs), set[str](), set[str]()
        while waiting:
            call = self.producer(waiting.pop())
            if call.name not in seen:
                seen.add(call.name)
                layers.add(call.layer)
                waiting += call.inputs
        return frozenset(layers)

    def producer(self, tensor: str) -> GraphCall:
        """Return the call that computes ``tensor``."""
        return self._producers[tensor]

    def consumers(self, tensor: str) -> list[tuple[GraphCall, int]]:
        """Return the calls that read ``tensor``, with their input numbers."""
        return self._consumers[tensor]

    def layers(self) -> Iterator[tuple[str, Any]]:
        """Yield each layer or operation once, as (unique name, object)."""
        for call in self.first_calls():
            yield call.layer, call.operation

    def first_calls(self) -> Iterator[GraphCall]:
        """Yield the first call of each layer."""
        for call in self.calls:
            if call.name == call.layer:
                yield call

    def calls_of(self, layer: str) -> list[GraphCall]:
        """Return every call of the layer with that unique name."""
        return [call for call in self.calls if call.layer == layer]

    def read_outputs(self, call: GraphCall) -> list[str]:
        """Return the outputs of a call that another call reads, or that the model returns."""
        return [each for each in call.outputs if self.consumers(each) or each in self.outputs]

    def quantizer_on(self, tensor: str) -> GraphCall | None:
        """Return the quantizer of a tensor, looking through range-preserving layers."""
        call = self.producer(tensor)
        while len(call.inputs) == 1 and call.traits.preserves_range:
            call = self.producer(call.inputs[0])
        return call if call.traits.is_quantizer else None
