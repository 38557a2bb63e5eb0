"""Trace a module with torch.fx, for both training and inference."""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.nn import modules as float_nn

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.roles import other_layers
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch.existing_quantizers import is_quantized
from qat_lib.torch.in_place import follow_in_place

logger = logging.getLogger("qat_lib")

TRACED = "qatline_traced"
"""Key in the ``meta`` of modules from ``trace_module``."""
FLAG = "qatline_training"
"""Name of the submodule that returns whether the model is training."""
WHOLE = (float_nn.Conv1d, float_nn.Conv2d, float_nn.Conv3d, float_nn.Linear)
"""Classes whose subclasses are also one operation, unless they override forward."""
FACTORIES = (
    *(torch.ones, torch.zeros, torch.full, torch.empty, torch.eye),
    *(torch.arange, torch.linspace, torch.rand, torch.randn),
)
"""Functions that create a tensor from sizes, possibly those of the model's input."""


class TrainingFlag(nn.Module):
    """Submodule that replaces reads of ``self.training`` in traced code."""

    def forward(self) -> bool:
        """Return whether the model is training."""
        return bool(self.training)


class _Value(fx.Proxy):
    """Traced value that records ``x += y`` as a change in place.

    The default proxy evaluates ``x + y`` and rebinds the name.
    """

    def __iadd__(self, other: Any) -> Any:
        return self._change(operator.iadd, other)

    def __isub__(self, other: Any) -> Any:
        return self._change(operator.isub, other)

    def __imul__(self, other: Any) -> Any:
        return self._change(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._change(operator.itruediv, other)

    def _change(self, change: Any, other: Any) -> Any:
        name = change.__name__.removeprefix("i")
        return self.tracer.create_proxy("call_function", change, (self, other), {}, name=name)


class GraphTracer(fx.Tracer):
    """Tracer with PyTorch's modules and this package's quantized modules as leaves.

    Optional arguments of the module's ``forward`` keep their default.

    Args:
        inputs: number of input tensors; None = the number of arguments of ``forward`` without a
            default.
        leaves: composite modules to treat as one operation.

    Attributes:
        failed: innermost module with an error; None = the traced module.
    """

    def __init__(self, inputs: int | None = None, leaves: Sequence[nn.Module] = ()) -> None:
        super().__init__(autowrap_functions=FACTORIES)
        # FACTORIES are wrapped only where they are found as attributes of a searched namespace.
        self._autowrap_search.append(torch)
        self._inputs = inputs
        self._leaves = leaves
        self.failed: nn.Module | None = None

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace a call of a module, and record the innermost module that fails."""
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or m
            raise

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one operation of the graph."""
        if (
            is_quantized(m)
            or isinstance(m, TrainingFlag)
            or any(m is leaf for leaf in self._leaves)
        ):
            return True
        if type(m).__name__ in other_layers("identity"):
            return True
        whole = any(type(m).forward is base.forward for base in WHOLE if isinstance(m, base))
        return whole or bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the traced value of a node."""
        return _Value(node, self)

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return the function to trace and proxies of its input tensors."""
        if not is_module or concrete_args is not None:
            function, given = super().create_args_for_root(root_fn, is_module, concrete_args)
            return function, given
        args: list[Any] = [self.root]
        for number, parameter in enumerate(
            list(inspect.signature(root_fn).parameters.values())[1:]
        ):
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                break
            has_default = parameter.default is not parameter.empty
            if number >= self._inputs if self._inputs is not None else has_default:
                break
            args.append(self.create_proxy("placeholder", parameter.name, (), {}))
        return root_fn, args


def trace_module(module: nn.Module, inputs: int | None = None) -> fx.GraphModule:
    """Return the traced module, with the same submodules and parameters.

    An untraceable submodule without weights, such as a resize to a computed size, becomes one
    operation.

    Args:
        module: the module; it is not changed. An already traced module is returned itself.
        inputs: number of input tensors; None (default) = the number of arguments of ``forward``
            without a default.

    Raises:
        UnsupportedModelError: torch.fx can't trace the module.
    """
    if isinstance(module, fx.GraphModule) and module.meta.get(TRACED):
        return module
    # Shared by both traces: the same submodules must be leaves in training and inference.
    leaves: list[nn.Module] = []
    with _in_mode(module, training=module.training):
        graph = _trace(module, inputs, leaves)
    traced = fx.GraphModule(module, graph, class_name=type(module).__name__)
    try:
        with _in_mode(module, training=not module.training):
            other = _trace(module, inputs, leaves)
    except UnsupportedModelError:  # for example, a detector that requires targets in training
        other = fx.Graph()
    _follow_mode(traced, other)
    follow_in_place(traced)
    traced.recompile()
    traced.meta[TRACED] = True
    return traced


def _trace(module: nn.Module, inputs: int | None, leaves: list[nn.Module]) -> fx.Graph:
    """Return the graph of a module, and add untraceable submodules to ``leaves``."""
    while True:
        tracer = GraphTracer(inputs, leaves)
        try:
            # Each attempt may add one leaf, so the loop ends with the number of submodules.
            graph = tracer.trace(module)
            break
        # A module's code may raise anything when it gets proxies of tensors.
        except Exception as error:
            failed = tracer.failed
            has_weights = failed is None or next(failed.parameters(), None) is not None
            if failed is None or has_weights or any(failed is leaf for leaf in leaves):
                raise UnsupportedModelError(_untraceable(module, error)) from error
            leaves.append(failed)
    for node in graph.nodes:
        # Postponed annotations are text, and a graph with such types can't be pickled.
        node.type = None if isinstance(node.type, str) else node.type
        if node.target in FACTORIES:
            # Otherwise the generated code refers to a global function named "torch.ones".
            node.meta.pop("is_wrapped", None)
    return graph


def _untraceable(module: nn.Module, error: Exception) -> str:
    """Return an error message with a remedy for an untraceable module."""
    text = f"torch.fx can't trace {type(module).__name__}: {describe_error(error)}. "
    if part := _traceable_part(module):
        text += (
            "Quantize a part that it can trace, and put it back: "
            f"`model.{part} = qat_lib.torch.quantize_model(model.{part})`, then calibrate it on its "
            "own inputs. Or quantize"
        )
    else:
        text += "Quantize"
    return text + (
        " its modules in place of its graph: build it within `with "
        "qat_lib.torch.quant_modules.quantized_modules():`."
    )


def _traceable_part(module: nn.Module) -> str:
    """Return the path of the traceable submodule with the most parameters, or an empty string."""
    sizes: dict[str, int] = {}
    for path, part in module.named_modules():
        if path and not isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            sizes[path] = sum(parameter.numel() for parameter in part.parameters())
    for path in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if not sizes[path]:
            break
        try:
            GraphTracer().trace(module.get_submodule(path))
        except Exception:  # noqa: BLE001  (its code may raise anything)
            continue
        return path
    return ""


@contextmanager
def _in_mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """Set the mode of a module and all submodules within the block."""
    before = [(m, m.training) for m in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for m, mode in before:
            m.training = mode


def _follow_mode(traced: fx.GraphModule, other: fx.Graph) -> None:
    """Replace the constants that differ from the trace in the other mode by the training flag."""
    nodes, others = list(traced.graph.nodes), list(other.nodes)
    # Different nodes in both modes: constants alone can't represent the difference.
    if [_form(node) for node in nodes] != [_form(node) for node in others]:
        logger.warning(
            "The forward of %s computes differently in training and in inference. Its quantized "
            "copy always computes as it does %s.",
            type(traced).__name__,
            "in training" if traced.training else "in inference",
        )
        return
    asks = _Mode(traced)
    for node, twin in zip(nodes, others, strict=True):
        if _constants(node) != _constants(twin):
            node.args = _blend(node.args, twin.args, asks)
            node.kwargs = _blend(node.kwargs, twin.kwargs, asks)


def _form(node: fx.Node) -> tuple[Any, ...]:
    """Return a description of a node without constants that may depend on the mode."""
    return (node.op, node.name, node.target, _described(node, keep=lambda _: False))


def _constants(node: fx.Node) -> Any:
    return _described(node, keep=lambda value: isinstance(value, bool))


def _described(node: fx.Node, keep: Any) -> str:
    def describe(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return value.name
        return value if keep(value) or not isinstance(value, bool) else "?"

    return repr(fx.node.map_aggregate((node.args, dict(node.kwargs)), describe))


class _Mode:
    """Nodes that return whether the model is training, created on demand."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self._traced = traced
        self._nodes: dict[bool, fx.Node] = {}

    def node(self, in_training: bool) -> fx.Node:
        """Return the node with the value ``in_training`` in training, else its negation."""
        graph = self._traced.graph
        if True not in self._nodes:
            self._traced.add_submodule(FLAG, TrainingFlag().train(self._traced.training))
            first = next(node for node in graph.nodes if node.op != "placeholder")
            with graph.inserting_before(first):
                self._nodes[True] = graph.call_module(FLAG)
        if in_training not in self._nodes:
            with graph.inserting_after(self._nodes[True]):
                self._nodes[False] = graph.call_function(operator.not_, (self._nodes[True],))
        return self._nodes[in_training]

    @property
    def training(self) -> bool:
        """Whether the graph was traced in training."""
        return bool(self._traced.training)


def _blend(mine: Any, other: Any, mode: _Mode) -> Any:
    """Return the arguments of a node with mode-dependent constants replaced by mode nodes."""
    if isinstance(mine, (tuple, list)):
        return type(mine)(_blend(a, b, mode) for a, b in zip(mine, other, strict=True))
    if isinstance(mine, dict):
        return {key: _blend(value, other[key], mode) for key, value in mine.items()}
    if isinstance(mine, bool) and mine != other:
        return mode.node(mine if mode.training else other)
    return mine
