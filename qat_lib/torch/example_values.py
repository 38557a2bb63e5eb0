"""Values of an example call, for shapes, and for code that torch.fx can't trace without them.

torch.fx traces with placeholders, which have no length and no truth value: it fails at ``list(x)``
or ``if x.shape != y.shape``. Here each placeholder also has the value of the example at its place,
a tensor without numbers, and answers from that.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

from qat_lib.export.conversion import quiet
from qat_lib.support.foreign_errors import describe_error

logger = logging.getLogger("qat_lib")

UNKNOWN = object()
"""Value of a node that can't be computed on tensors without numbers."""


class ExampleValues:
    """Values of the nodes of a trace, computed on tensors without numbers.

    Args:
        root: the traced module.
        example: tensors for its inputs, in order.

    Attributes:
        is_computing: whether a value is being computed. The code of a module then runs on values,
            and must not be traced.
    """

    def __init__(self, root: nn.Module, example: Sequence[Any]) -> None:
        # A tensor that is neither an input nor a parameter, such as a constant, is a real one.
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        # Operations change buffers in place, such as the statistics of a BatchNorm in training.
        with FakeCopyMode(self._mode):
            self._root = copy.deepcopy(root)
        _teach_einops()
        self._given = iter([self._without_numbers(value) for value in example])
        self._known: dict[fx.Node, Any] = {}
        self.is_computing = False

    def _without_numbers(self, value: Any) -> Any:
        return self._mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    def record(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Compute the value of a node from the values of its arguments.

        Args:
            node: the node; its inputs are recorded already.
            args, kwargs: its arguments, with nodes or traced values for those of other nodes.

        Returns:
            The value, or ``UNKNOWN``.
        """
        self.is_computing = True
        try:
            with self._mode, torch.no_grad(), quiet("torch._subclasses.fake_tensor"):
                value = self._compute(node, args, kwargs)
        # The code of an operation may raise anything.
        except Exception as error:  # noqa: BLE001
            logger.debug("The value of %s is unknown: %s", node.name, describe_error(error))
            value = UNKNOWN
        finally:
            self.is_computing = False
        self._known[node] = value
        return value

    def _compute(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "placeholder":
            return next(self._given, *args)  # the default of an argument without an example
        if node.op == "get_attr":
            return _attribute(self._root, str(node.target))
        values = fx.node.map_aggregate((args, kwargs), self._value)
        if any(value is UNKNOWN for value in torch.utils._pytree.tree_leaves(values)):
            return UNKNOWN
        given, named = values
        if node.op == "call_module":
            return self._root.get_submodule(str(node.target))(*given, **named)
        function = getattr(given[0], str(node.target)) if node.op == "call_method" else node.target
        return function(*(given[1:] if node.op == "call_method" else given), **named)

    def _value(self, traced: Any) -> Any:
        node = traced.node if isinstance(traced, fx.Proxy) else traced
        return self._known[node] if isinstance(node, fx.Node) else traced

    def of(self, traced: Any) -> Any:
        """Return the value of a traced value, or ``UNKNOWN``."""
        return self._known.get(traced.node, UNKNOWN)

    def plain(self, traced: fx.Proxy) -> Any:
        """Return a traced value other than a tensor, such as a size or a comparison of sizes.

        Raises:
            fx.proxy.TraceError: the value is unknown, or depends on the numbers in a tensor.
        """
        value = self.of(traced)
        if value is UNKNOWN or isinstance(value, torch.Tensor):
            raise fx.proxy.TraceError(f"the value of {traced.node.name} depends on numbers")
        return value

    def length(self, traced: fx.Proxy) -> int:
        """Return the length of a traced sequence or tensor.

        Raises:
            fx.proxy.TraceError: the length is unknown.
        """
        value = self.of(traced)
        if not isinstance(value, (tuple, list, dict, torch.Tensor)):
            raise fx.proxy.TraceError(f"the length of {traced.node.name} is unknown")
        return len(value)

    def remove_decided(self, graph: fx.Graph) -> None:
        """Remove sizes and comparisons without a reader, the conditions of branches."""
        for node in reversed(graph.nodes):
            value = self._known.get(node, UNKNOWN)
            is_plain = isinstance(value, (bool, int, float, torch.Size, torch.dtype, torch.device))
            if node.op != "placeholder" and is_plain and not node.users:
                graph.erase_node(node)


def _attribute(module: nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


class KnownValue:
    """Conversions of a traced value with an example; a mixin of ``fx.Proxy``."""

    tracer: Any

    def __iter__(self) -> Iterator[Any]:
        length = self.tracer.values.length(self)
        return (self[index] for index in range(length))  # type: ignore[index]

    def __len__(self) -> int:
        return int(self.tracer.values.length(self))

    def __bool__(self) -> bool:
        return bool(self.tracer.values.plain(self))

    def __int__(self) -> int:
        return int(self.tracer.values.plain(self))

    def __index__(self) -> int:
        return int(self.tracer.values.plain(self))

    def __float__(self) -> float:
        return float(self.tracer.values.plain(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.tracer.values.plain(self), dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array_"):  # NumPy asks for them before it calls __array__
            raise AttributeError(name)
        found = self.tracer.values.of(self)
        # x.device.type is an argument of torch.autocast, x.dtype of torch.finfo, x.ndim a key of
        # einops, and x.dim() a factor of lists: they take no traced value.
        is_plain = isinstance(found, torch.device) or (
            isinstance(found, torch.Tensor) and name in ("dtype", "ndim", "dim")
        )
        return getattr(found, name) if is_plain else KnownAttribute(self, name)


class KnownAttribute(KnownValue, fx.proxy.Attribute):
    """An attribute of a traced value with an example."""


def _teach_einops() -> None:
    """Let einops, if it is imported, work on traced values with an example."""
    backends: Any = sys.modules.get("einops._backends")
    loaded, name = getattr(backends, "_loaded_backends", None), "torch.fx"
    if loaded is None or name in loaded:
        return

    class Traced(backends.TorchBackend):
        framework_name = name  # einops searches the classes of backends that it has not loaded

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, KnownValue)

        def shape(self, x: Any) -> list[Any]:
            # einops keeps the tuples of sizes that it has seen, and a traced size has the module.
            return [x.shape[axis] for axis in range(x.ndim)]

    loaded[name] = Traced()
