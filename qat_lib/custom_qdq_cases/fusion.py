"""TensorRT's fusions into convolution and Dense kernels, on the call graph.

The rules come from the TensorRT developer guide ("Explicit Quantization") and from the layers of
built engines; ``qat_lib.analysis`` applies the same rules to ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence

from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.roles import activation_functions
from qat_lib.graph.traits import Traits

EPILOGUE = activation_functions("epilogue")
"""Activations that the kernel of a weighted layer applies before it writes."""
AFTER_ADD = activation_functions("after add")
"""Activations that fuse into one kernel with an addition or a normalization in front of them."""
GATED = activation_functions("gated")
"""Products of x and a function of x: they do not fuse into a depthwise convolution
(NVIDIA/TensorRT#3205)."""
ADDITIONS = ("Add", "CustomScaleLayer")
"""Operations that add tensors: Add, ``x + y``, InceptionResNet's scaled residual."""


def is_addition(call: GraphCall) -> bool:
    """Return whether the call adds tensors."""
    return call.traits.kind in ADDITIONS


def adds_without_broadcast(shapes: Sequence[tuple[int | None, ...]]) -> bool:
    """Return whether tensors have the same shape, as far as sizes are known.

    EinsumDense leaves some sizes open.
    """
    if len({len(shape) for shape in shapes}) > 1:
        return False
    for axis, sizes in enumerate(zip(*shapes, strict=True)):
        known = {size for size in sizes if size is not None}
        # The batch (axis 0) is open in every shape. Elsewhere, an open size beside a 1 may be
        # larger.
        may_broadcast = axis > 0 and known == {1} and None in sizes
        if len(known) > 1 or may_broadcast:
            return False
    return True


def is_self_gate(graph: CallGraph, call: GraphCall) -> bool:
    """Return whether the call is ``x * f(x)`` with pointwise ``f``, fused into the kernel of x."""
    roots = []
    for tensor in call.inputs:
        producer = graph.producer(tensor)
        while len(producer.inputs) == 1 and _is_pointwise(producer.traits):
            tensor = producer.inputs[0]
            producer = graph.producer(tensor)
        roots.append(tensor)
    return len(set(roots)) == 1


def _is_pointwise(traits: Traits) -> bool:
    return traits.activation is not None or "affine" in traits.roles


def chain_root(graph: CallGraph, tensor: str, *, sole: bool = False) -> GraphCall | None:
    """Return the weighted layer whose kernel writes ``tensor``, or None for another kernel.

    The kernel may include normalization, scales, activations and inference-time identities. With
    ``sole``, no tensor on the way may have another reader.
    """
    passed: set[str] = set()
    while True:
        if sole and (len(graph.consumers(tensor)) != 1 or tensor in graph.outputs):
            return None
        call = graph.producer(tensor)
        traits = call.traits
        if traits.is_weighted:
            # An activation inside of the layer counts like one behind it.
            if traits.own_activation is not None:
                passed.add(traits.own_activation)
            return call if passed <= _accepted(traits) else None
        if traits.is_identity and len(call.inputs) == 1:
            pass
        elif traits.activation is not None:
            passed.add(traits.activation)
        # Normalizations and constant scales fold into the weights and the bias.
        elif traits.kind != "BatchNormalization" and "affine" not in traits.roles:
            return None
        tensor = call.inputs[0]


def _accepted(traits: Traits) -> frozenset[str]:
    return EPILOGUE - GATED if "depthwise" in traits.roles else EPILOGUE


def float_outputs(graph: CallGraph) -> dict[str, str]:
    """Return the layers between the last weights and the model's outputs, with the reason of each.

    From each output, the walk goes back to the first weighted layers. If no normalization or
    activation lies between, their errors reach the output in full: they are output layers. A layer
    that other weights read as well is none, nor is a shared one unless all its calls are. Output
    layers inside a composite are ``"<layer>/<path>"``.
    """
    last: dict[str, str] = {}
    waiting, seen = [(tensor, tensor) for tensor in graph.outputs], set[str]()
    while waiting:
        tensor, output = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        call = graph.producer(tensor)
        traits = call.traits
        # The walk ends at weights; an activation of their own limits their errors.
        if traits.is_weighted:
            if traits.own_activation is None:
                last[call.name] = output
        elif call.layer in graph.composites:
            if graph.composites[call.layer].last:
                last[call.name] = output
        elif not _rescales(traits):
            waiting += [(source, output) for source in call.inputs]
    # A layer that feeds other weights, too, has readers that expect INT8.
    found: dict[str, str] = {}
    for name, output in last.items():
        behind = _behind(graph, graph.by_name[name])
        if not any(call.traits.is_weighted or call.layer in graph.composites for call in behind):
            found[name] = f"a float output layer: no activation between it and the output {output}"
            for call in behind:
                found.setdefault(call.name, f"behind the float output layer {name}")
    # From calls to layers: a shared layer has one precision, so all its calls must agree.
    layers: dict[str, str] = {}
    for name, reason in found.items():
        layer = graph.by_name[name].layer
        if all(call.name in found for call in graph.calls_of(layer)):
            composite = graph.composites.get(layer)
            inner = () if composite is None else composite.last
            layers |= {f"{layer}/{path}": reason for path in inner} or {layer: reason}
    return layers


def _rescales(traits: Traits) -> bool:
    """Return whether the operation is a normalization, an activation or a softmax."""
    if traits.kind == "BatchNormalization" or traits.activation is not None:
        return True
    is_softmax = traits.roles >= {"axis", "float"}
    return is_softmax or bool(traits.roles & {"normalization", "activation layer"})


def _behind(graph: CallGraph, call: GraphCall) -> list[GraphCall]:
    """Return the calls that depend on a call's outputs."""
    found: dict[str, GraphCall] = {}
    waiting = [call]
    while waiting:
        for tensor in waiting.pop().outputs:
            for reader, _ in graph.consumers(tensor):
                if reader.name not in found:
                    found[reader.name] = reader
                    waiting.append(reader)
    return list(found.values())
