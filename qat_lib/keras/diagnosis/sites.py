"""Quantizers of a model with their tensors and layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from qat_lib.custom_qdq_cases.fusion import chain_root
from qat_lib.keras.graph.layer_graph import Call, LayerGraph
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import layers_inside
from qat_lib.keras.wrappers.composite import CompositeQuantizeWrapper

_PREFIX, _SUFFIX = "quant_", "_quantizer"


@dataclass(frozen=True, kw_only=True)
class Site:
    """One quantizer of a model.

    Layer names are those of the float model, as used in a spec.

    Attributes:
        quantizer: name of the quantizer.
        kind: kind of the quantized tensor.
        tensor: ``"<layer>:<output>"`` for an activation, else ``"<layer>/<weight>"``.
        layer: the layer that computes the tensor or owns the weight. If a kernel fuses
            normalization and activation, it is the preceding weighted layer.
        readers: layers that read the quantized tensor; for a weight, its own layer.
        depthwise: whether a reader is a depthwise convolution.
    """

    quantizer: str
    kind: Literal["activation", "weight", "internal"]
    tensor: str
    layer: str
    readers: tuple[str, ...]
    depthwise: bool = False


def read_sites(graph: LayerGraph) -> list[Site]:
    """Return the quantizers of a quantized model, in the order of its calls."""
    found: dict[str, Site] = {}
    for call in graph.calls:
        if isinstance(call.operation, TensorQuantizer):
            site = _activation(graph, call)
            known = found.get(site.quantizer)
            if known is not None:  # one quantizer shared by several tensors
                readers = tuple(dict.fromkeys((*known.readers, *site.readers)))
                depthwise = known.depthwise or site.depthwise
                site = Site(**{**known.__dict__, "readers": readers, "depthwise": depthwise})
            found[site.quantizer] = site
        # A layer called twice has two calls but one set of weight quantizers: only the first call
        # has the plain name.
        elif call.traits.is_wrapped and call.name == call.layer:
            for site in _inside(call):
                found[site.quantizer] = site
    return list(found.values())


def float_name(call: Call) -> str:
    """Return the name of a call's layer in the float model."""
    return call.layer.removeprefix(_PREFIX) if call.traits.is_wrapped else call.layer


def _activation(graph: LayerGraph, call: Call) -> Site:
    tensor = call.inputs[0]
    producer = graph.producer(tensor)
    assert isinstance(producer, Call)
    readers = list(_readers(graph, call.outputs[0]))
    return Site(
        quantizer=call.operation.name,
        kind="activation",
        tensor=f"{float_name(producer)}:{tensor.rpartition(':')[2]}",
        layer=_maker(graph, tensor),
        readers=tuple(dict.fromkeys(map(float_name, readers))),
        depthwise=any("depthwise" in reader.traits.roles for reader in readers),
    )


def _readers(graph: LayerGraph, tensor: str) -> Iterator[Call]:
    """Yield the calls that compute with a tensor, also after pooling, padding or reshaping."""
    for call, _ in graph.consumers(tensor):
        assert isinstance(call, Call)
        if call.traits.preserves_range or call.traits.is_quantizer:
            for output in call.outputs:
                yield from _readers(graph, output)
        else:
            yield call


def _maker(graph: LayerGraph, tensor: str) -> str:
    """Return the name of the layer that computes the values of a tensor."""
    root = chain_root(graph, tensor)
    # Without a fusible chain, walk back over layers that only move or rectify values.
    call = graph.producer(tensor)
    while root is None and len(call.inputs) == 1:
        if not (call.traits.preserves_range or call.traits.activation is not None):
            break
        call = graph.producer(call.inputs[0])
    found = root or call
    assert isinstance(found, Call)
    return float_name(found)


def _inside(call: Call) -> Iterator[Site]:
    """Yield the quantizers of weights and inner tensors of a wrapped layer."""
    layer, wrapper = float_name(call), call.operation
    depthwise = "depthwise" in call.traits.roles
    if isinstance(wrapper, CompositeQuantizeWrapper):
        yield from _inside_composite(layer, wrapper)
        return
    for quantizer in layers_inside(wrapper):
        if not isinstance(quantizer, TensorQuantizer):
            continue
        part = quantizer.name.removeprefix(f"{call.core.name}_").removesuffix(_SUFFIX)
        yield Site(
            quantizer=quantizer.name,
            kind="weight" if quantizer.of_weight else "internal",
            tensor=f"{layer}/{part}",
            layer=layer,
            readers=(layer,),
            depthwise=depthwise,
        )


def _inside_composite(layer: str, wrapper: Any) -> Iterator[Site]:
    for item in wrapper.weights_config or ():
        path, _, _ = item["weight"].rpartition("/")
        inner = f"{layer}/{path}"
        yield Site(
            quantizer=item["name"],
            kind="weight",
            tensor=f"{layer}/{item['weight']}",
            layer=inner,
            readers=(inner,),
        )
    for item in wrapper.inputs_config or ():
        readers = tuple(f"{layer}/{path}" for path in item["readers"])
        yield Site(
            quantizer=item["name"],
            kind="internal",
            tensor=f"{readers[0]}/input",
            layer=layer,
            readers=readers,
        )
