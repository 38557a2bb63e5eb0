"""Trace a module with torch.fx, for both training and inference."""

from __future__ import annotations

import logging
import operator
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.fx import _symbolic_trace
from torch.nn import modules as float_nn
from torch.nn.utils import parametrize

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.roles import other_layers
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch.example_values import ExampleValues, KnownValue
from qat_lib.torch.existing_quantizers import is_quantized
from qat_lib.torch.functional_layers import functions_to_modules, normed_to_plain
from qat_lib.torch.in_place import assigned, follow_in_place
from qat_lib.torch.inference import in_inference
from qat_lib.torch.shapes import call_with, example_arguments, required_arguments
from qat_lib.torch.transformers import is_opened, opened
from qat_lib.torch.twin_traces import TrainingFlag, follow_batch, follow_mode

logger = logging.getLogger("qat_lib")

TRACED = "qatline_traced"
"""Key in the ``meta`` of modules from ``trace_module``."""
ROUNDS = "qatline_rounds"
"""Key in their ``meta``: whether they may sum in another order than the module."""
WHOLE = (float_nn.Conv1d, float_nn.Conv2d, float_nn.Conv3d, float_nn.Linear)
"""Classes whose subclasses are also one operation, unless they override forward."""
_ROUNDING = 1e-4
"""Difference between two orders of the same sums, as a share of the largest output."""
WRAPPED = (
    *(torch.ones, torch.zeros, torch.full, torch.empty, torch.eye),
    *(torch.arange, torch.linspace, torch.rand, torch.randn, torch.tensor),
    torch.is_tensor,
)
"""Functions that torch.fx would call with traced values; most create a tensor from sizes."""


class _Value(fx.Proxy):
    """Traced value that records ``x += y`` as a change in place, and ``x[index] = y``.

    The default proxy evaluates ``x + y`` and rebinds the name, and refuses the assignment.
    """

    node: fx.Node

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.node.op == "get_attr":
            raise TypeError("a parameter is changed by an assignment to its items")
        changed = self.tracer.create_proxy("call_function", assigned, (self, index, value), {})
        self.node = changed.node  # whoever holds this value now reads the changed one

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


class _KnownValue(KnownValue, _Value):
    """Traced value that also has the value of an example."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tensor itself, for code that tests ``callable(x)``: every proxy is callable."""
        is_tensor = isinstance(self.tracer.values.of(self), torch.Tensor)
        return self if is_tensor and not (args or kwargs) else super().__call__(*args, **kwargs)


class GraphTracer(fx.Tracer):
    """Tracer with PyTorch's modules and this package's quantized modules as leaves.

    Args:
        arguments: names of the arguments of ``forward`` that are inputs; others keep their default.
            Default None: those without a default.
        leaves: composite modules to treat as one operation.
        example: their tensors, as the source of lengths and of the branches that depend on sizes.
            Default: none; such code can't be traced.
        buffers: whether buffers become traced values, like parameters, and not constants.

    Attributes:
        failed: innermost module with an error; None = the traced module.
        values: values of the example; None without one.
    """

    def __init__(
        self,
        arguments: Sequence[str] | None = None,
        leaves: Sequence[nn.Module] = (),
        example: Sequence[Any] = (),
        *,
        buffers: bool = False,
    ) -> None:
        super().__init__(autowrap_functions=WRAPPED)
        self.proxy_buffer_attributes = buffers
        # They are wrapped where they are attributes of a searched namespace.
        self._autowrap_search.append(torch)
        self._arguments = arguments
        self._leaves = leaves
        self._example = example
        # The module that is called by separate operations.
        self._open: nn.Module | None = None
        self.failed: nn.Module | None = None
        self.values: ExampleValues | None = None

    @property
    def _is_computing(self) -> bool:
        """Whether code runs on the values of the example, and must not be traced."""
        return self.values is not None and self.values.is_computing

    def _is_part(self, m: nn.Module) -> bool:
        """Return whether ``m`` belongs to the model; forward may make others, as in nn.ReLU()(x)."""
        try:
            self.path_of_module(m)
        except NameError:
            return False
        return True

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *options: Any, **named: Any
    ) -> fx.Proxy:
        """Add a node, and compute its value for the example."""
        traced = super().create_proxy(kind, target, args, kwargs, *options, **named)
        if self.values is not None:
            self.values.record(traced.node, args, kwargs)
        return traced

    def create_arg(self, a: Any) -> Any:
        """Return an argument of a node; a NumPy scalar becomes a number that code can state."""
        return super().create_arg(a.item() if isinstance(a, np.generic) else a)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """Return an attribute of a module; while tracing, parameters are traced values."""
        if self._is_computing:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Trace a call of a module, and record the innermost module that fails."""
        if self._is_computing or not self._is_part(m):
            return forward(*args, **kwargs)
        with suppress(ValueError):  # a module from torch.jit.trace has no signature
            # A caller may catch the TypeError of unknown arguments, and call again without them.
            signature(m.forward).bind(*args, **kwargs)
        is_leaf = any(m is leaf for leaf in self._leaves)
        parts = None if is_leaf else opened(m)
        self._open = m if parts else None
        try:
            return super().call_module(m, parts or forward, args, kwargs)
        except Exception:
            self.failed = self.failed or m
            raise

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is one operation of the graph."""
        if m is self._open:
            return False
        if (
            is_quantized(m)
            or isinstance(m, TrainingFlag)
            or any(m is leaf for leaf in self._leaves)
        ):
            return True
        if type(m).__name__ in other_layers("identity"):
            return True
        if any(type(m).forward is base.forward for base in WHOLE if isinstance(m, base)):
            return True
        # PyTorch derives the class of a module with a parametrization from the user's.
        kind = type(m).__bases__[0] if parametrize.is_parametrized(m) else type(m)
        if kind is not type(m) or kind.__module__.startswith("torch.nn.utils"):
            return kind.__module__.startswith("torch.nn.modules")
        return bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the traced value of a node."""
        return _Value(node, self) if self.values is None else _KnownValue(node, self)

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return the function to trace and proxies of its input tensors."""
        if not is_module or concrete_args is not None:
            function, given = super().create_args_for_root(root_fn, is_module, concrete_args)
            return function, given
        if self._example:
            self.values = ExampleValues(self.root, self._example)
        names = required_arguments(self.root) if self._arguments is None else self._arguments
        traced = [self.create_proxy("placeholder", name, (), {}) for name in names]
        forward = opened(self.root) or partial(root_fn, self.root)

        def call(*inputs: Any) -> Any:
            return call_with(self.root, forward, dict(zip(names, inputs, strict=True)))

        return call, traced


def trace_module(
    module: nn.Module, arguments: Sequence[str] | None = None, example: Any = None
) -> fx.GraphModule:
    """Return the traced module, with the same submodules and parameters.

    An untraceable submodule without weights, such as a resize to a computed size, becomes one
    operation. Other untraceable code, such as a branch on a size, is traced for the example, and an
    assignment to items of a tensor is compared on it. A module that can't be traced for it either,
    such as one that calls a scripted function, becomes one operation if its parts have no weights.

    Args:
        module: the module; it is not changed. An already traced module is returned itself.
        arguments: names of the arguments of ``forward`` that are inputs, in its order; others keep
            their default. Default None: those of the example, or those without a default.
        example: a tensor, a tuple of tensors, or a dict of tensors by argument, of two samples or
            more. Default: none.

    Raises:
        UnsupportedModelError: torch.fx can't trace the module, or the example does not fit it.
    """
    if isinstance(module, fx.GraphModule) and module.meta.get(TRACED):
        return module
    given = {} if example is None else example_arguments(module, example)
    if given:
        arguments = list(given)
    values = tuple(given.values())
    # Shared by both traces: the same submodules must be leaves in training and inference.
    leaves: list[nn.Module] = []
    with unchanged(module):
        module.train(module.training)  # parts in another mode follow the module, too
        graph, by_example = _trace(module, arguments, leaves, values)
        traced = fx.GraphModule(module, graph, class_name=type(module).__name__)
    try:
        with unchanged(module):
            module.train(not module.training)
            other, _ = _trace(module, arguments, leaves, values)
    except UnsupportedModelError:  # for example, a detector that requires targets in training
        other = fx.Graph()
    # An assignment also changes all tensors that share the memory, in the module alone.
    assigns = bool(graph.find_nodes(op="call_function", target=assigned))
    if assigns and not given:
        reason = "it assigns to items of a tensor. Give example_input, to compare the results"
        raise UnsupportedModelError(_untraceable(module, reason))
    nodes = list(traced.graph.nodes)
    follows = follow_mode(traced, nodes, other)
    if by_example and (more := _one_more(given)):
        with unchanged(module), suppress(UnsupportedModelError):
            larger, _ = _trace(module, arguments, leaves, tuple(more.values()))
            if follow_batch(nodes, larger, (len(values[0]), len(values[0]) + 1)):
                given = more
    follow_in_place(traced)
    normed_to_plain(traced)
    traced.meta[ROUNDS] = functions_to_modules(traced) or any(map(is_opened, module.modules()))
    traced.recompile()
    traced.meta[TRACED] = True
    # In training, a comparison would change statistics.
    comparable = follows or not module.training
    if (by_example or assigns) and comparable and not answers_alike(module, traced, given):
        raise UnsupportedModelError(
            _untraceable(module, "the traced module computes other outputs for example_input")
        )
    return traced


def _one_more(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an example with one more sample; empty without samples in its first argument."""
    first = next(iter(given.values()))
    if not isinstance(first, torch.Tensor) or not first.ndim:
        return {}
    return {
        name: torch.cat([x, x[:1]])
        if isinstance(x, torch.Tensor) and x.ndim and len(x) == len(first)
        else x
        for name, x in given.items()
    }


def _trace(
    module: nn.Module,
    arguments: Sequence[str] | None,
    leaves: list[nn.Module],
    example: Sequence[Any],
) -> tuple[fx.Graph, bool]:
    """Trace a module, with an example also into functions of weights that ``torch.fx.wrap`` marks.

    Returns:
        The graph, and whether it takes the branches of the example.
    """
    graph, by_example = _trace_around(module, arguments, leaves, example)
    # Such as the attention of torchvision's Swin, whose code depends on sizes.
    functions = {
        node.target
        for node in graph.nodes
        if node.meta.get("is_wrapped") and any(x.op == "get_attr" for x in node.all_input_nodes)
    }
    if example and functions:
        with _traced_into(functions), suppress(UnsupportedModelError):
            return _trace_around(module, arguments, leaves, example)
    return graph, by_example


def _trace_around(
    module: nn.Module,
    arguments: Sequence[str] | None,
    leaves: list[nn.Module],
    example: Sequence[Any],
) -> tuple[fx.Graph, bool]:
    """Trace a module, and add untraceable submodules to ``leaves``; see ``_trace``."""
    guide: Sequence[Any] = ()
    buffers = False
    while True:
        tracer = GraphTracer(arguments, leaves, guide, buffers=buffers)
        try:
            # Each attempt may add one leaf, so the loop ends with the number of submodules. Forward
            # may assign a traced value, as in self.mean = self.mean.to(x.device).
            with unchanged(module):
                graph = tracer.trace(module)
            break
        # A module's code may raise anything when it gets proxies of tensors.
        except Exception as error:
            failed = tracer.failed
            if any(failed is leaf for leaf in leaves):
                failed = None
            if failed is not None and (
                is_opened(failed) or next(failed.parameters(), None) is None
            ):
                leaves.append(failed)
            elif example and not guide:
                # Later, because the branches of an example are right for similar inputs only.
                guide = example
            elif guide and not buffers:
                # A constant tensor takes no traced size, as in self.positions.expand(x.shape[0]).
                buffers = True
            elif guide and failed is not None and _is_innermost(failed):
                leaves.append(failed)
            else:
                reason = describe_error(error)
                if example:
                    _run(module, dict(zip(arguments or (), example, strict=True)))
                else:
                    reason += ". If its code depends on sizes, give example_input"
                raise UnsupportedModelError(_untraceable(module, reason)) from error
    for tensor, path in tracer.tensor_attrs.items():
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, tensor)
    if tracer.values is not None:
        tracer.values.remove_decided(graph)
    for node in graph.nodes:
        # Postponed annotations are text, and a graph with such types can't be pickled.
        node.type = None if isinstance(node.type, str) else node.type
        if node.target in WRAPPED:
            # Otherwise the generated code refers to a global function named "torch.ones".
            node.meta.pop("is_wrapped", None)
    return graph, bool(guide)


def _is_innermost(module: nn.Module) -> bool:
    """Return whether a module's parameters are all its own, as those of a scripted activation."""
    return all(next(child.parameters(), None) is None for child in module.children())


@contextmanager
def _traced_into(functions: set[Any]) -> Iterator[None]:
    """Let torch.fx trace into functions that ``torch.fx.wrap`` keeps whole, within the block."""
    wrapped = _symbolic_trace._wrapped_fns_to_patch
    before = dict(wrapped)
    for key, names in before.items():
        if names.get(key[1]) in functions:
            del wrapped[key]
    try:
        yield
    finally:
        wrapped.clear()
        wrapped.update(before)


def answers_alike(module: nn.Module, traced: fx.GraphModule, example: Mapping[str, Any]) -> bool:
    """Return whether a traced module has the same outputs as the module for arguments by name.

    Attention by separate operations and products with a transposed weight round differently; other
    outputs are identical.

    A forward that branches on the type of its arguments, or records calls of its submodules, takes
    another path under torch.fx. Other mappings, such as the outputs of Hugging Face's models, become
    a ``dict``.

    Raises:
        UnsupportedModelError: the module can't run on the example.
    """
    random = torch.Generator().manual_seed(0)

    def fill(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return torch.randn(x.shape, generator=random).to(x.device)

    def copied(x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) else x

    filled = torch.utils._pytree.tree_map(fill, dict(example))
    # Copies, because a forward may change its inputs in place.
    answers = _run(module, torch.utils._pytree.tree_map(copied, filled))
    with unchanged(module), in_inference(traced), torch.no_grad(), _seeded():
        expected, form = torch.utils._pytree.tree_flatten(plain_outputs(answers))
        try:
            inputs = torch.utils._pytree.tree_map(copied, tuple(filled.values()))
            found, other = torch.utils._pytree.tree_flatten(traced(*inputs))
        # Wrong shapes raise errors of many types.
        except Exception:  # noqa: BLE001
            return False
    # Structures first: map would ignore missing outputs.
    alike = _close if traced.meta[ROUNDS] else _equal
    return form == other and all(map(alike, expected, found))


def _run(module: nn.Module, arguments: Mapping[str, Any]) -> Any:
    """Return the outputs of a module in inference mode for arguments by name.

    Raises:
        UnsupportedModelError: the module can't run on them.
    """
    try:
        with unchanged(module), in_inference(module), torch.no_grad(), _seeded():
            return call_with(module, module, arguments)
    # The user's code may raise anything.
    except Exception as error:
        tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise UnsupportedModelError(
            f"{type(module).__name__} can't run on inputs of shape {shapes}: "
            f"{describe_error(error)}. Arguments of forward with a default keep it, unless the data "
            "has an array by that name; others get one array each."
        ) from error


@contextmanager
def _seeded() -> Iterator[None]:
    """Make code that adds noise, even in inference, add the same noise within each block."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(0)
        yield


def plain_outputs(outputs: Any) -> Any:
    """Return outputs with each mapping as a dict, as torch.fx does."""
    if isinstance(outputs, Mapping):
        return {name: plain_outputs(value) for name, value in outputs.items()}
    if type(outputs) in (tuple, list):
        return type(outputs)(map(plain_outputs, outputs))
    return outputs


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        # torch.equal treats NaN as unequal to itself.
        return bool(torch.equal(x.nan_to_num(), y.nan_to_num()))
    return bool(type(x) is type(y) and x == y)


def _close(x: Any, y: Any) -> bool:
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.shape == y.shape):
        return _equal(x, y)
    largest = float(x.nan_to_num().abs().max()) if x.numel() else 0.0
    return bool(torch.allclose(x, y, rtol=0, atol=_ROUNDING * largest, equal_nan=True))


def _untraceable(module: nn.Module, reason: str) -> str:
    """Return an error message with a remedy for an untraceable module."""
    text = f"torch.fx can't trace {type(module).__name__}: {reason}. "
    if isinstance(module, torch.jit.ScriptModule):
        return text + "Pass the module that was given to torch.jit.script or torch.jit.trace."
    parallel = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    if parallel or hasattr(module, "_orig_mod"):  # of torch.compile
        return text + f"Pass the module inside: model.{'module' if parallel else '_orig_mod'}."
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
    """Return the path of the traceable submodule with the most quantizable weights, or ""."""
    sizes: dict[str, int] = {}
    for path, part in module.named_modules():
        if path and not isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            layers = [layer for layer in part.modules() if isinstance(layer, WHOLE)]
            sizes[path] = sum(weight.numel() for each in layers for weight in each.parameters())
    # Such a part gains most from a quantization of its own.
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
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the attributes of a module and its submodules after the block, their modes included.

    Code that runs without numbers may assign attributes, such as a cache of positions by size.
    """
    before: list[tuple[Any, Any]] = []
    for m in module.modules():
        # The containers of attributes, such as a cache of positions, have entries of their own.
        for found in (vars(m), *vars(m).values()):
            # Not those of other classes, which may be immutable, as the configs of diffusers.
            if type(found) in (dict, OrderedDict, list, set):
                before.append((found, found.copy()))
    try:
        yield
    finally:
        for found, content in before:
            found.clear()
            (found.extend if isinstance(found, list) else found.update)(content)
