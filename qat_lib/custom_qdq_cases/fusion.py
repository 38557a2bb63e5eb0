"""TensorRT's fusions into convolution and Dense kernels, on the call graph.

The rules are those of the TensorRT developer guide ("Explicit Quantization") and of engines whose
layers were read; ``qat_lib.analysis`` applies the same ones to ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence

from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.roles import activation_functions
from qat_lib.graph.traits import Traits

EPILOGUE = activation_functions("epilogue")
"""Activations that a weighted layer's kernel applies before it writes."""
AFTER_ADD = activation_functions("after add")
"""Activations that stay in one kernel with an addition or a normalization in front of them."""
GATED = activation_functions("gated")
"""Products of x and a function of x: a depthwise convolution's kernel does not take them
(NVIDIA/TensorRT#3205)."""
ADDITIONS = ("Add", "CustomScaleLayer")
"""Operations that add tensors: Add, ``x + y``, InceptionResNet's scaled residual."""


def is_addition(call: GraphCall) -> bool:
    """Whether the call adds tensors."""
    return call.traits.kind in ADDITIONS


def adds_without_broadcast(shapes: Sequence[tuple[int | None, ...]]) -> bool:
    """Whether tensors have one shape, as far as sizes are known.

    EinsumDense leaves some open.
    """
    if len({len(shape) for shape in shapes}) > 1:
        return False
    for axis, sizes in enumerate(zip(*shapes, strict=True)):
        known = {size for size in sizes if size is not None}
        may_broadcast = axis > 0 and known == {1} and None in sizes
        if len(known) > 1 or may_broadcast:
            return False
    return True


def is_self_gate(graph: CallGraph, call: GraphCall) -> bool:
    """Whether this is ``x * f(x)`` with pointwise ``f``.

    It fuses into the kernel of ``x``.
    """
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
    """Return the weighted layer whose kernel writes ``tensor``, or None.

    None means that another kernel writes it. The kernel may go on with normalization, scales,
    activations and what is the identity at inference. With ``sole`` nothing else may read any
    tensor on the way.
    """
    passed: set[str] = set()
    while True:
        if sole and (len(graph.consumers(tensor)) != 1 or tensor in graph.outputs):
            return None
        call = graph.producer(tensor)
        traits = call.traits
        if traits.is_weighted:
            if traits.own_activation is not None:
                passed.add(traits.own_activation)
            return call if passed <= _accepted(traits) else None
        if traits.is_identity and len(call.inputs) == 1:
            pass
        elif traits.activation is not None:
            passed.add(traits.activation)
        elif traits.kind != "BatchNormalization" and "affine" not in traits.roles:
            return None
        tensor = call.inputs[0]


def _accepted(traits: Traits) -> frozenset[str]:
    return EPILOGUE - GATED if "depthwise" in traits.roles else EPILOGUE
