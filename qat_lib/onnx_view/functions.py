"""Inlining of model-local functions, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx.inliner

from qat_lib.errors import ExportError
from qat_lib.onnx_view.protos import nodes_of

MAX_NODES = 200_000
_MAX_DEPTH = 100


def inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with its functions inlined, if the result is within the limit.

    Raises:
        ExportError: a function calls itself, the graph would exceed ``MAX_NODES`` nodes, or ONNX
            can't inline a function.
    """
    sizes = _Sizes(path, model)
    # Counted before inlining, because a few nested functions can expand to billions of nodes.
    # Functions without a call are included: they may be recursive, too.
    for function in model.functions:
        sizes.of_function((function.domain, function.name))
    total = sizes.of_nodes(_operators(model.graph.node))
    if total > MAX_NODES:
        raise ExportError(
            f"Expected a graph of at most {MAX_NODES:,} nodes. Received {path} with {total:,}."
        )
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ExportError(
            f"Expected functions that can be inlined. Received {path}: {error}."
        ) from error


def _operators(nodes: Iterable[onnx.NodeProto]) -> Counter[tuple[str, str]]:
    """Return the number of nodes by domain and name of the operator."""
    return Counter((node.domain, node.op_type) for node in nodes_of(nodes))


class _Sizes:
    """Number of nodes of each function after inlining."""

    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        self._path = path
        self._calls: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
        for function in model.functions:
            self._calls[function.domain, function.name] = _operators(function.node)
        self._sizes: dict[tuple[str, str], int] = {}
        self._open: set[tuple[str, str]] = set()

    def of_nodes(self, counts: Counter[tuple[str, str]]) -> int:
        """Return the inlined size of nodes, from the count of each operator."""
        total = 0
        for key, times in counts.items():
            # A call is replaced by the body, so it does not count itself.
            total += times * (self.of_function(key) if key in self._calls else 1)
        return total

    def of_function(self, key: tuple[str, str]) -> int:
        """Return the size of a function's body."""
        # The depth limit keeps a long chain of functions from Python's recursion limit.
        if key in self._open or len(self._open) > _MAX_DEPTH:
            raise ExportError(
                f"Expected functions that end. Received {self._path}, whose function {key[1]!r} "
                "calls itself."
            )
        if key not in self._sizes:
            self._open.add(key)
            self._sizes[key] = self.of_nodes(self._calls[key])
            self._open.remove(key)
        return self._sizes[key]
