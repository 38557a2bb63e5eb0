"""Shapes and dtypes of the tensors of a traced module, from example inputs."""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata

from qat_lib.errors import CalibrationError, UnsupportedModelError
from qat_lib.torch.example_values import UNKNOWN, ExampleValues

logger = logging.getLogger("qat_lib")

SEVERAL = frozenset(("split", "chunk", "tensor_split", "unbind", "topk", "sort"))
"""Functions with several output tensors."""


def required_arguments(module: nn.Module) -> list[str]:
    """Return the names of forward's arguments without a default."""
    return [each.name for each in _arguments(module) if each.default is each.empty]


def chosen_arguments(module: nn.Module, batch: Any) -> list[str]:
    """Return the names of forward's arguments that a batch of data is for.

    They are those without a default and those that the batch has an array for by name. If there
    are none, it is for the first one, as with the models of Hugging Face.

    Raises:
        CalibrationError: forward lacks an argument of the batch.
    """
    arguments = _arguments(module)
    given = list(batch) if isinstance(batch, Mapping) else []
    names = [each.name for each in arguments if each.default is each.empty or each.name in given]
    if unknown := [name for name in given if name not in names]:
        raise CalibrationError(
            f"Expected arrays for arguments of {type(module).__name__}.forward: "
            f"{', '.join(each.name for each in arguments) or 'it has none'}. "
            f"Received: {', '.join(map(str, unknown))}."
        )
    return names or [each.name for each in arguments[:1]]


def example_arguments(module: nn.Module, example: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, in the order of forward's signature.

    Args:
        module: the called module.
        example: a tensor, a tuple or list of tensors, or a dict of tensors by argument; arguments
            with a default may be missing.

    Raises:
        UnsupportedModelError: forward takes other arguments.
    """
    names = [each.name for each in _arguments(module)]
    if not isinstance(example, Mapping):
        values = example if isinstance(example, tuple | list) else (example,)
        beyond = [f"argument {number + 1}" for number in range(len(names), len(values))]
        example = dict(zip([*names, *beyond], values, strict=False))
    if not set(required_arguments(module)) <= set(example) <= set(names):
        takes = ", ".join(each.name for each in _arguments(module)) or "none"
        raise UnsupportedModelError(
            f"Expected the arguments of {type(module).__name__}.forward: {takes}; those with a "
            f"default may be missing. Received: {', '.join(map(str, example))}."
        )
    return {name: example[name] for name in names if name in example}


def call_with(module: nn.Module, function: Any, arguments: Mapping[str, Any]) -> Any:
    """Call a function that has the signature of a module's forward with arguments by name."""
    bound = inspect.BoundArguments(inspect.signature(module.forward), OrderedDict(arguments))
    return function(*bound.args, **bound.kwargs)


def _arguments(module: nn.Module) -> list[inspect.Parameter]:
    """Return forward's arguments except ``*args`` and ``**kwargs``."""
    found = inspect.signature(module.forward).parameters.values()
    return [x for x in found if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]


def propagate_shapes(traced: fx.GraphModule, example: Sequence[Any]) -> None:
    """Record the shape and dtype of each tensor without computation.

    They remain unknown behind an operation that can't run on tensors without numbers.

    Args:
        traced: the module.
        example: its arguments, in order.
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
