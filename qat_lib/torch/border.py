"""Name the inputs, outputs and open dimensions of a converted graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from qat_lib.errors import ExportError
from qat_lib.export.graph import border_dimension
from qat_lib.torch.tracing import plain_outputs

pytree = torch.utils._pytree


def name_border(model: ir.Model, program: Any, batch: int | None) -> None:
    """Name inputs after the arguments of forward, and outputs after their position in the result.

    Args:
        model: the converted model.
        program: the captured program.
        batch: fixed batch size; None if open.

    Raises:
        ExportError: forward returns no tensor.
    """
    graph = model.graph
    names = output_names(program)
    if not names or len(names) != len(graph.outputs):
        raise ExportError(
            "Expected a module whose forward returns tensors. Received one that returns "
            f"{len(graph.outputs)} tensors and other values. Return tensors only."
        )
    taken = {str(value.name) for value in graph.inputs}
    for value, name in zip(graph.outputs, names, strict=True):
        # ONNX requires unique value names: a dict key may equal an argument of forward.
        value.name = f"{name}_output" if name in taken else name
    renamed: dict[Any, int | str] = {}
    for value in (*graph.inputs, *graph.outputs):
        if value.shape is not None:
            old = tuple(value.shape)
            new = [border_dimension(dim, i, str(value.name), batch) for i, dim in enumerate(old)]
            value.shape = ir.Shape(new)
            renamed = {**dict(zip(old, new, strict=True)), **renamed}
    renamed.pop(ir.SymbolicDim(None), None)  # dimensions without a name may have different sizes
    for value in (output for node in graph for output in node.outputs):
        if value.shape is not None and value not in graph.outputs:
            value.shape = ir.Shape([renamed.get(dim, dim) for dim in value.shape])


def output_names(program: Any) -> list[str]:
    """Return a name for each output tensor of a program.

    A single tensor is ``output``; elements of a tuple are ``output_0``, ``output_1``, ...; values
    of a dict or an object are named by their keys, with underscores between nested keys.
    """
    spec = program.call_spec.out_spec
    # Mappings of other classes may have no paths.
    places = plain_outputs(pytree.tree_unflatten(list(range(spec.num_leaves)), spec))
    paths = sorted(pytree.tree_flatten_with_path(places)[0], key=lambda found: found[1])
    return [output_name(path) for path, _ in paths]


def output_name(path: Sequence[Any]) -> str:
    """Return the name of the output tensor at a path of keys in forward's result."""
    parts = [_key(key) for key in path]
    if not parts or parts[0].isdigit():
        parts = ["output", *parts]
    return "_".join(parts)


def _key(key: Any) -> str:
    """Return one step of a path: dict key, field name or tuple index."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
