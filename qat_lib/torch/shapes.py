"""Shapes and dtypes of the tensors of a traced module, from example inputs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata

from qat_lib.errors import UnsupportedModelError
from qat_lib.torch.example_values import UNKNOWN, ExampleValues

logger = logging.getLogger("qat_lib")

SEVERAL = frozenset(("split", "chunk", "tensor_split", "unbind", "topk", "sort"))
"""Functions with several output tensors."""


def example_inputs(module: nn.Module, example: Any) -> tuple[Any, ...]:
    """Return the arguments of a call from an example.

    Args:
        module: the called module.
        example: a tensor, a tuple or list of tensors, or a dict of tensors by argument.

    Raises:
        UnsupportedModelError: the keys of a dict are not the first arguments of forward.
    """
    if isinstance(example, tuple | list):
        return tuple(example)
    if not isinstance(example, Mapping):
        return (example,)
    names = list(inspect.signature(module.forward).parameters)[: len(example)]
    if set(names) != set(example):
        raise UnsupportedModelError(
            f"Expected an example of the first arguments of {type(module).__name__}.forward: "
            f"{', '.join(names) or 'it has none'}. Received: {', '.join(map(str, example))}."
        )
    return tuple(example[name] for name in names)


def propagate_shapes(traced: fx.GraphModule, example: Sequence[Any]) -> None:
    """Record the shape and dtype of each tensor without computation.

    They remain unknown behind an operation that can't run on tensors without numbers.

    Args:
        traced: the module.
        example: its arguments from ``example_inputs``.
    """
    try:
        values = ExampleValues(traced, example)
    # A module with a lock or a file can't be copied, and raises errors of many types.
    except Exception as error:  # noqa: BLE001
        logger.info("The shapes of %s are unknown: %s", type(traced).__name__, error)
        return
    for node in traced.graph.nodes:
        value = values.record(node, node.args, node.kwargs)
        if value is not UNKNOWN and node.op != "output":
            node.meta["type"] = type(value)
            node.meta["tensor_meta"] = fx.node.map_aggregate(value, _described)


def _described(value: Any) -> Any:
    return _extract_tensor_metadata(value) if isinstance(value, torch.Tensor) else value


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a node's tensor; None if unknown or without a tensor."""
    found = node.meta.get("tensor_meta")
    return tuple(found.shape) if isinstance(found, TensorMetadata) else None


def dtype_of(node: fx.Node) -> str:
    """Return the dtype of a node's tensor, ``"float32"`` if unknown."""
    found = node.meta.get("tensor_meta")
    if isinstance(found, TensorMetadata):
        return str(found.dtype).removeprefix("torch.")
    return "unknown" if "type" in node.meta else "float32"


def gives_several(node: fx.Node, module: nn.Module | None, function: str) -> bool:
    """Return whether a node returns a tuple or list instead of a tensor."""
    kind = node.meta.get("type")
    if isinstance(kind, type):
        return issubclass(kind, tuple | list)
    if module is None:
        return function in SEVERAL
    return isinstance(module, nn.RNNBase | nn.LSTMCell | nn.MultiheadAttention)
