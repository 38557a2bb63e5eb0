"""ModuleGraph: flat, read-only view of a PyTorch module as calls and tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.nn import modules as float_nn

from qat_lib.graph.call_graph import CallGraph, Composite, GraphCall
from qat_lib.graph.roles import torch_functions
from qat_lib.graph.traits import Traits
from qat_lib.torch.existing_quantizers import refuse_other_tools
from qat_lib.torch.functions import function_name
from qat_lib.torch.module_traits import INPUT, function_traits, is_known, known_names, module_traits
from qat_lib.torch.shapes import dtype_of, gives_several, shape_of
from qat_lib.torch.tracing import trace_module

SHAPE_READERS = torch_functions("shape") | {"getattr", "len", "is_floating_point", "_assert"}
"""Functions that do not read the values of a tensor."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ModuleCall(GraphCall):
    """One call of a module, function, method or operator.

    Modules are named by their path, such as ``layer1.0.conv1``, functions by their node in the
    graph of torch.fx, such as ``add_1``.

    Attributes:
        node: the node.
        known: traits of the operation.
    """

    node: fx.Node = field(repr=False)
    known: Traits = field(repr=False)

    @property
    def traits(self) -> Traits:
        """Traits of the operation."""
        return self.known


class ModuleGraph(CallGraph):
    """Flat graph of a PyTorch module traced by torch.fx.

    Args:
        module: the module, or a result of ``qat_lib.torch.tracing.trace_module``.

    Raises:
        UnsupportedModelError: torch.fx can't trace the module.
    """

    calls: tuple[ModuleCall, ...]

    def __init__(self, module: nn.Module) -> None:
        self.model = trace_module(module)
        self.name = type(self.model).__name__
        reader = _Reader(self.model)
        reader.read()
        self.calls = tuple(reader.calls)
        self.inputs = tuple(reader.inputs)
        self.outputs = tuple(reader.outputs)
        self.shapes = reader.shapes
        self.dtypes = reader.dtypes
        # First node of each tensor.
        self.nodes: dict[str, fx.Node] = reader.nodes
        # Tensor of each node, without nodes that return a constant or a shape.
        self.tensors: dict[fx.Node, str] = reader.tensors
        self.catalog = ModuleCatalog(call.traits.class_name for call in self.calls)

    @property
    def composites(self) -> Mapping[str, Composite]:
        """Always empty: torch.fx traces into modules with submodules."""
        return {}

    def refuse_quantized(self) -> None:
        """Reject a model with PyTorch's quantized modules.

        Raises:
            UnsupportedModelError: the model contains such a module.
        """
        refuse_other_tools(self.model)


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """Return the inputs of a node in argument order, with repetitions."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, dict(node.kwargs)), found.append)
    return found


class _Reader:
    """Collector of the calls of a graph and the tensors between them."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._used = {name for name, _ in traced.named_modules()}
        self._count: dict[str, int] = {}
        self.calls: list[ModuleCall] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.nodes: dict[str, fx.Node] = {}
        self.tensors: dict[fx.Node, str] = {}
        self._several: set[fx.Node] = set()

    def read(self) -> None:
        """Read every node."""
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                self.inputs.append(self._add(node, self._unique(str(node.target)), INPUT, ()))
            elif node.op == "output":
                read = inputs_of(node)
                self.outputs += [self.tensors[n] for n in read if n in self.tensors]
            elif node.op != "get_attr":
                self._read_call(node)

    def _read_call(self, node: fx.Node) -> None:
        is_module = node.op == "call_module"
        function = "" if is_module else function_name(node)
        read = tuple(self.tensors[n] for n in inputs_of(node) if n in self.tensors)
        if not read or function in SHAPE_READERS:
            return  # a constant, or a number computed from a shape
        if function == "getitem" and self._is_element(node):
            call, _, _ = read[0].rpartition(":")
            self._note(node, f"{call}:{node.args[1]}")
            return
        module = self._operation(node) if is_module else None
        if module is not None:
            layer = str(node.target)
            known = module_traits(module, len(read))
        else:
            layer = self._unique(node.name)
            shape = self.shapes.get(read[0])
            known = function_traits(node, len(read), None if shape is None else len(shape))
        if gives_several(node, module, function):
            self._several.add(node)
        self._add(node, layer, known, read)

    def _is_element(self, node: fx.Node) -> bool:
        """Return whether a node selects one of several outputs of another node."""
        return node.args[0] in self._several and isinstance(node.args[1], int)

    def _add(self, node: fx.Node, layer: str, known: Traits, read: tuple[str, ...]) -> str:
        """Add a call and return its first tensor."""
        count = self._count[layer] = self._count.get(layer, -1) + 1
        name = layer if count == 0 else f"{layer}@{count}"
        numbers = {0}
        if node in self._several:
            # Outputs exist only as far as a getitem node selects them.
            numbers.update(user.args[1] for user in node.users if _is_numbered(user))
        self.calls.append(
            ModuleCall(
                name=name,
                layer=layer,
                operation=self._operation(node),
                inputs=read,
                outputs=tuple(f"{name}:{number}" for number in sorted(numbers)),
                node=node,
                known=known,
            )
        )
        self._note(node, f"{name}:0")
        if node in self._several:
            self.dtypes[f"{name}:0"] = "unknown"  # until a getitem node selects it
        return f"{name}:0"

    def _operation(self, node: fx.Node) -> Any:
        """Return the target of a node: module, function, method or input name."""
        is_module = node.op == "call_module"
        return self._traced.get_submodule(str(node.target)) if is_module else node.target

    def _note(self, node: fx.Node, tensor: str) -> None:
        """Record the tensor of a node; for several outputs, the first tensor."""
        self.tensors[node] = tensor
        if self.dtypes.get(tensor, "unknown") != "unknown":
            return
        self.nodes[tensor] = node
        self.dtypes[tensor] = dtype_of(node)
        if (shape := shape_of(node)) is not None:
            self.shapes[tensor] = shape

    def _unique(self, name: str) -> str:
        """Return a unique name for a function, with a number if a module has the name."""
        base = name
        number = 0
        while name in self._used:
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name


def _is_numbered(node: fx.Node) -> bool:
    return function_name(node) == "getitem" and isinstance(node.args[1], int)


class ModuleCatalog:
    """Quantizable module classes and functions; a ``qat_lib.graph.catalog.Catalog``.

    Args:
        own: names of the classes and functions in the model.
    """

    noun = "quantized module"

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = frozenset(own)

    def class_named(self, name: str) -> Any:
        """Return the torch.nn class of a name, the name of another known class, or None."""
        if is_known(name):
            return getattr(float_nn, name, name)
        return name if name in self._own else None

    def class_names(self) -> list[str]:
        """Return the sorted names of all quantizable classes and functions."""
        return sorted(self._own.union(known_names()))

    def remedy(self, name: str) -> str:
        """Return a short hint on supporting a class."""
        return f"write Quant{name} with qat_lib.torch.nn.QuantMixin"

    def advice(self, name: str) -> str:
        """Return a full sentence on supporting a class."""
        return (
            f"To quantize it, write a module Quant{name} with qat_lib.torch.nn.QuantMixin or "
            "QuantInputMixin and use it in the model."
        )
