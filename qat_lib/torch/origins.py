"""Record the source module of each node of a converted graph."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from qat_lib.export.graph import LAYER, ORIGIN, TENSOR, constant
from qat_lib.torch.capture import SCOPE

SCOPES = "pkg.torch.onnx.name_scopes"
"""Metadata key of PyTorch's exporter for the modules around a node, from the outermost (the model,
"") to the innermost, followed by the operation."""

UNKNOWN = "_empty_nn_module_stack_from_metadata_hook"
"""The exporter's entry for operations outside of all modules, such as the size of the batch."""


@dataclass(frozen=True)
class Scopes:
    """Modules around each node of a graph from PyTorch's exporter.

    Attributes:
        around: name of a node or of its output -> paths of the surrounding modules, the innermost
            last.
    """

    around: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, model: ir.Model) -> Scopes:
        """Read the scopes of every node."""
        around: dict[str, tuple[str, ...]] = {}
        for node in model.graph:
            paths = _paths(node.metadata_props.get(SCOPES, "[]"))
            for name in (node.name, *(output.name for output in node.outputs)):
                if name and paths:
                    around[name] = paths
        return cls(around)

    def find(self, node: ir.Node) -> tuple[str, ...]:
        """Return the module paths of a node, or else of one of its outputs or inputs."""
        values = [value for value in (*node.outputs, *node.inputs) if value is not None]
        for name in (node.name, *(value.name for value in values)):
            if name and name in self.around:
                return self.around[name]
        return ()


def _paths(text: str) -> tuple[str, ...]:
    scopes = [str(scope) for scope in ast.literal_eval(text)]
    if UNKNOWN in scopes or not scopes:
        return ()
    *modules, operation = scopes
    # An operation directly in the model has no module path, so its name is used.
    paths = [_layer(path) for path in modules if path] or [operation]
    return tuple(paths)


def _layer(path: str) -> str:
    """Return the path of a module, or the name of its function."""
    return path.removeprefix(SCOPE)


def attribute_nodes(model: ir.Model, scopes: Scopes, markers: Mapping[str, str]) -> None:
    """Record the source modules of nodes and of module outputs.

    Each node gets its module and the corresponding module of the float model.

    Args:
        model: the converted model.
        scopes: scopes from PyTorch's exporter.
        markers: tensor of each quantizer's marker -> name of the quantizer.
    """
    around = {node: scopes.find(node) for node in model.graph}
    origins: dict[ir.Value, str] = {value: str(value.name) for value in model.graph.inputs}
    for node, paths in around.items():
        source = next(iter(node.inputs), None)
        if paths:
            node.meta[LAYER] = node.meta[ORIGIN] = paths[-1]
        # A quantizer belongs to the module of its weight, or to the source of its activation.
        if node.outputs[0].name in markers and paths:
            if constant(source) is not None:
                node.meta[ORIGIN] = paths[-1].rpartition(".")[0] or paths[-1]
            elif source in origins:
                node.meta[ORIGIN] = origins[source]
        for output in node.outputs:
            origins[output] = node.meta.get(ORIGIN, "graph")
    _note_outputs(around)


def _note_outputs(around: Mapping[ir.Node, tuple[str, ...]]) -> None:
    """Record for each tensor the innermost module with this tensor as its only output."""
    leaving: dict[str, list[ir.Value]] = defaultdict(list)
    for node, paths in around.items():
        for value in node.outputs:
            readers = [set(around[use.node]) for use in value.uses() if use.node in around]
            for path in paths:
                if value.is_graph_output() or any(path not in inside for inside in readers):
                    leaving[path].append(value)
    # Outer modules first, so that the innermost overwrites them.
    for path in sorted(leaving, key=lambda path: path.count(".")):
        if len(leaving[path]) == 1:
            leaving[path][0].meta[TENSOR] = path
