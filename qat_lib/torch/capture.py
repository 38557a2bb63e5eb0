"""Capture a module as a program with the source module of each operation."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from qat_lib.errors import ExportError, UnsupportedModelError
from qat_lib.export.conversion import quiet
from qat_lib.support.foreign_errors import describe_error
from qat_lib.torch.export_mode import export_mode
from qat_lib.torch.inference import in_inference
from qat_lib.torch.tracing import answers_alike, trace_module, unchanged

SCOPE = "qatline_call_"
"""Prefix of function names in module paths."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """Arguments of a module, each a tensor or a structure of tensors.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, example_input: Any, *, batch: int | None) -> Example:
        """Return the arguments of ``example_input``, in the requested batch size.

        Args:
            example_input: a tensor, a tuple or list of positional arguments, or a dict of keyword
                arguments.
            batch: number of samples; None uses two, so that no operation is specialized for one.

        Raises:
            ExportError: the example contains no tensor, or an empty one.
        """
        if isinstance(example_input, Mapping):
            example_input = dict(example_input)
        tensors = [x for x in torch.utils._pytree.tree_leaves(example_input) if is_tensor(x)]
        if not tensors or any(x.ndim and not len(x) for x in tensors):
            raise ExportError(
                "Expected example_input: a tensor, a tuple of tensors or a dict of tensors by the "
                f"names of forward's arguments. Received: {type(example_input).__name__}."
            )
        # All tensors get the batch size: torch.export compares the sizes of the arguments.
        sized = torch.utils._pytree.tree_map(
            lambda x: _of_batch(x, 2 if batch is None else batch) if is_tensor(x) else x,
            example_input,
        )
        if isinstance(sized, Mapping):
            return cls(kwargs=sized)
        return cls(args=tuple(sized) if isinstance(sized, tuple | list) else (sized,), kwargs={})

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors of all arguments in order."""
        leaves = torch.utils._pytree.tree_leaves((self.args, dict(self.kwargs)))
        return [x for x in leaves if is_tensor(x)]

    def filled(self, tensors: Sequence[torch.Tensor]) -> Example:
        """Return the same arguments with other tensors."""
        left = iter(tensors)
        args, kwargs = torch.utils._pytree.tree_map(
            lambda x: next(left) if is_tensor(x) else x, (self.args, dict(self.kwargs))
        )
        return Example(args=args, kwargs=kwargs)


def is_tensor(x: Any) -> bool:
    """Return whether ``x`` is a tensor."""
    return isinstance(x, torch.Tensor)


def _of_batch(x: torch.Tensor, batch: int) -> torch.Tensor:
    x = x.detach()
    if x.is_floating_point():
        x = x.float()
    # Repeats the samples of an example that is smaller than the batch.
    return x[torch.arange(batch) % len(x)] if x.ndim else x


def capture(module: nn.Module, example: Example, *, batch: int | None) -> Any:
    """Return the ``torch.export.ExportedProgram`` of a module in inference mode.

    If torch.fx can trace the module, its functions are captured as modules with their node names,
    as in plans. Otherwise they have the name of the surrounding module.

    Args:
        module: the module, on the device of the example.
        example: its arguments.
        batch: fixed batch size; None leaves the first dimension of each tensor open.

    Raises:
        ExportError: ``torch.export`` can't capture the module.
    """
    bound = bind_example(module, example)
    shapes = None if batch is not None else _open_batch(bound.arguments)
    found: Exception | None = None
    # By the example second: its branches are right for similar inputs only. PyTorch's transformers
    # need it, whose test for a causal mask can't be captured.
    for guide in (False, True):
        named = _with_named_functions(module, bound.arguments, guide)
        if found is not None and named is module:
            break
        try:
            return _program(named, bound, shapes)
        except Exception as error:  # noqa: BLE001 (torch.export raises errors of many types)
            found = found or error
    advice = "" if batch is not None else ", or give a fixed batch with batch_size=<n>"
    raise ExportError(
        f"torch.export could not capture the module: {describe_error(cast(Exception, found))}. Write "
        f"its forward without control flow that depends on values of tensors{advice}."
    ) from found


def _program(named: nn.Module, bound: inspect.BoundArguments, shapes: Any) -> Any:
    with (
        unchanged(named),
        in_inference(named),
        export_mode(),
        silent(),
        torch.no_grad(),
        _AttentionOfFourDimensions(),
    ):
        return torch.export.export(
            named, bound.args, bound.kwargs, dynamic_shapes=shapes, strict=False
        )


def bind_example(module: nn.Module, example: Example) -> inspect.BoundArguments:
    """Return the arguments in the order of forward's signature.

    Raises:
        ExportError: the arguments do not fit forward.
    """
    signature = inspect.signature(module.forward)
    try:
        return signature.bind(*example.args, **example.kwargs)
    except TypeError as error:
        raise ExportError(
            f"Expected example_input to fit forward{signature}. It does not: {error}."
        ) from error


def _open_batch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the open dimensions of each argument: the first of each tensor."""

    def shape(x: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if is_tensor(x) and x.ndim else None

    return {name: torch.utils._pytree.tree_map(shape, value) for name, value in arguments.items()}


def _with_named_functions(
    module: nn.Module, arguments: Mapping[str, Any], by_example: bool
) -> nn.Module:
    """Return the module with named functions, or unchanged if torch.fx can't trace it."""
    if isinstance(module, fx.GraphModule):
        return name_functions(module)
    try:
        with quiet("qat_lib"):  # its warning about training mode is irrelevant here
            traced = trace_module(module, list(arguments), arguments if by_example else None)
    except UnsupportedModelError:
        return module
    return name_functions(traced) if answers_alike(module, traced, arguments) else module


def name_functions(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module that runs each function as a submodule with its name, sharing all weights."""
    graph = fx.Graph()
    output = graph.graph_copy(module.graph, {})
    graph.output(output)
    named = fx.GraphModule(module, graph)
    # torch.export records module paths but not fx node names, so functions become modules.
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        path = f"{SCOPE}{node.name}"
        named.add_submodule(path, _Function(node.target))
        node.op, node.target = "call_module", path
    named.recompile()
    return named


class _Function(nn.Module):
    """Module that calls a function, or a method of its first argument."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        self.target = target

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.target, str):
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)


class _AttentionOfFourDimensions(TorchFunctionMode):
    """Mode that calls attention with four dimensions, the number that torch.onnx converts."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_attention = func is nn.functional.scaled_dot_product_attention
        return (_attention if is_attention else func)(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **options: Any,
) -> torch.Tensor:
    """Return PyTorch's attention, computed with all leading dimensions as one."""
    compute = nn.functional.scaled_dot_product_attention
    lead = query.shape[:-3]
    if query.ndim in (2, 4) or not lead == key.shape[:-3] == value.shape[:-3]:
        return compute(query, key, value, attn_mask, *args, **options)

    def joined(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, *x.shape[-3:])

    if attn_mask is not None and attn_mask.ndim > 3:
        attn_mask = joined(attn_mask.expand(*lead, *attn_mask.shape[-3:]))
    y = compute(joined(query), joined(key), joined(value), attn_mask, *args, **options)
    return y.reshape(*lead, *y.shape[-3:])


@contextmanager
def silent() -> Iterator[None]:
    """Silence PyTorch's exporter logs and warnings within the block."""
    with quiet("torch.onnx", "torch.export", "onnxscript"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def in_float32(module: Any) -> nn.Module:
    """Return the module, or a float32 copy if it stores another floating-point type.

    Raises:
        UnsupportedModelError: ``module`` is not a module.
    """
    if not isinstance(module, nn.Module):
        raise UnsupportedModelError(
            f"Expected a torch.nn.Module. Received: {type(module).__name__}. "
            "Models of Keras are exported by qat_lib.export_onnx."
        )
    stored = [*module.parameters(), *module.buffers()]
    if any(x.is_floating_point() and x.dtype != torch.float32 for x in stored):
        # float() converts in place, hence the copy.
        return copy.deepcopy(module).float()
    return module
