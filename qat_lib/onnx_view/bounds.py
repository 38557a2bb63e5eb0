"""Limits of what an engine builder computes and stores for a graph.

Builders fold what depends on constants only, so that a file of a hundred bytes (a Range to 1e11)
can take all memory; a tensor of more than 2 ** 31 elements has no kernel; and compile time grows
with the cube of a run of elementwise operators. Everything here is read from shapes: nothing is
computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from pathlib import Path

import numpy as np
import onnx

from qat_lib.errors import ExportError
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import OnnxGraph, captured
from qat_lib.onnx_view.protos import message_names, nodes_of, subgraphs_of, writers
from qat_lib.onnx_view.shapes import (
    Dim,
    TensorType,
    declared_types,
    fixed_sizes,
    infer_graph,
    types_of,
)

MAX_NODES = 20_000
#: TensorRT's limit; 8 GiB of float32.
MAX_ELEMENTS = 2**31 - 1
MAX_ELEMENTWISE_RUN = 256
MAX_TRIPS = 100_000
#: Bytes of computed constants, beside a multiple of the weights (INT8 to float, transposes).
MAX_FOLDED_BYTES = 2**28
MAX_FOLDED_RATIO = 16
MAX_FOLDED_MACS = 5 * 10**9

#: Operators that can be larger than all of their operands.
_GROWING = onnx_operators("growing")
#: A comparison ends a run.
_ELEMENTWISE = (onnx_operators("unary") | onnx_operators("broadcasting")) - onnx_operators(
    "predicate"
)
_WEIGHTED = onnx_operators("weighted")
_SHAPES = onnx_operators("shape")
_ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def check_bounds(
    path: Path, model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Check that ``model`` builds or runs in bounded time and memory.

    Args:
        path: the file, for the message.
        model: the model, from ``qat_lib.onnx_view.loading.load_onnx``.
        shapes: largest shape of each graph input. Default None: as the file declares them.

    Raises:
        ExportError: it exceeds a limit of this module, or its nodes form no graph.
    """
    order = [model.graph.node[node.index] for node in OnnxGraph(model).nodes]
    try:
        _Bounds(model, order, shapes).check()
    except _LimitError as error:
        raise ExportError(
            f"Expected a graph that can be built in bounded memory. In {path} {error}"
        ) from error


class _LimitError(ValueError):
    """A limit is exceeded; the message says which, and what to do."""


class _Bounds:
    """One walk over a graph and the graphs inside of it."""

    def __init__(
        self,
        model: onnx.ModelProto,
        order: Sequence[onnx.NodeProto],
        shapes: Mapping[str, Sequence[int]] | None,
    ) -> None:
        self._model = model
        self._order = order
        self._graph = infer_graph(model, shapes)
        self._types: dict[str, TensorType] = types_of(model, self._graph)
        weights = 0
        for tensor in model.graph.initializer:
            weights += self._bytes(tensor.name) or 0
        self._room = MAX_FOLDED_BYTES + MAX_FOLDED_RATIO * weights
        self._macs = MAX_FOLDED_MACS

    def check(self) -> None:
        count = sum(1 for _ in nodes_of(self._model.graph.node))
        if count > MAX_NODES:
            raise _LimitError(
                f"there are {count:,} nodes; engines are built of up to {MAX_NODES:,}. "
                "Split the network, or simplify the graph (constant folding) first."
            )
        self._check_runs()
        for value in self._graph.input:
            self._check_size(value.name, f"the input {value.name!r}")
        self._constants = set(message_names(self._model.graph.initializer))
        self._check_nodes(self._order, self._graph)

    def _check_nodes(self, nodes: Iterable[onnx.NodeProto], inferred: onnx.GraphProto) -> None:
        twins = writers(inferred.node)
        for node in nodes:
            bodies = _bodies(node)
            reads = chain(node.input, *map(captured, bodies))
            given = self._constants.issuperset(filter(None, reads))
            if self._is_known_shape(node) or (given and not bodies):
                if node.op_type != "Constant":
                    self._fold(node)
                self._constants.update(node.output)
            if node.op_type == "Loop":
                self._check_trips(node, given)
            for output in filter(None, node.output):
                self._check_size(output, f"node {_name(node)} makes {output!r}, which")
            twin = next((twins[output] for output in node.output if output in twins), node)
            for body, typed in zip(bodies, _bodies(twin), strict=True):
                self._check_body(body, typed)

    def _is_known_shape(self, node: onnx.NodeProto) -> bool:
        """Whether a builder knows the result of a shape operator.

        The shape of an open batch is never folded.
        """
        if node.op_type not in _SHAPES or not node.input:
            return False
        shape = self._shape(node.input[0])
        return shape is not None and len(self._fixed(node.input[0])) == len(shape)

    def _check_body(self, body: onnx.GraphProto, typed: onnx.GraphProto) -> None:
        self._types.update(declared_types(typed))
        for tensor in body.initializer:
            self._types[tensor.name] = TensorType(shape=tuple(tensor.dims), dtype="")
            self._constants.add(tensor.name)
        self._check_nodes(body.node, typed)

    def _fold(self, node: onnx.NodeProto) -> None:
        """Subtract a constant node's folded results from the remaining budget."""
        for output in filter(None, node.output):
            size = self._bytes(output)
            if size is None and node.op_type in _GROWING:
                raise _LimitError(
                    f"node {_name(node)} ({node.op_type}) makes a constant whose size can't be "
                    "known before it is computed. Fold the constants of the graph first, or export "
                    "with fixed shapes."
                )
            self._room -= size or 0
        if self._room < 0:
            raise _LimitError(
                f"the constants that are computed, up to node {_name(node)} ({node.op_type}), take "
                f"more than {MAX_FOLDED_BYTES:,} bytes beside the weights. Compute them outside of "
                "the graph."
            )
        self._macs -= self._products(node)
        if self._macs < 0:
            raise _LimitError(
                f"products of constants, up to node {_name(node)}, take more than "
                f"{MAX_FOLDED_MACS:,} multiplications. Compute them outside of the graph."
            )

    def _products(self, node: onnx.NodeProto) -> int:
        """Return the multiplications of a product of constants, or a little more."""
        if node.op_type not in _WEIGHTED or len(node.input) < 2 or not node.output:
            return 0
        left, right = self._fixed(node.input[0]), self._fixed(node.input[1])
        result = self._fixed(node.output[0])
        if node.op_type == "Conv":
            return prod(result) * prod(right[1:])
        if node.op_type == "ConvTranspose":
            return prod(left) * prod(right[1:])
        return prod(result) * max(left[-2:], default=1)

    def _check_trips(self, node: onnx.NodeProto, given: bool) -> None:
        count = self._integer(node.input[0]) if node.input else None
        endless = given and count is None
        if endless or (count is not None and count > MAX_TRIPS):
            times = "on constants only" if count is None else f"{count:,} times"
            raise _LimitError(
                f"node {_name(node)} (Loop) runs {times}. Export without loops, or with at most "
                f"{MAX_TRIPS:,} turns."
            )

    def _integer(self, name: str) -> int | None:
        for tensor in self._model.graph.initializer:
            if tensor.name == name and prod(tensor.dims) == 1:
                return int(np.asarray(onnx.numpy_helper.to_array(tensor)).reshape(()))
        return None

    def _check_size(self, name: str, what: str) -> None:
        shape = self._shape(name)
        if shape and prod(self._fixed(name)) > MAX_ELEMENTS:
            raise _LimitError(
                f"{what} has the shape {list(shape)}; a tensor has at most {MAX_ELEMENTS:,} "
                "elements. Build for a smaller batch or image."
            )

    def _shape(self, name: str) -> tuple[Dim, ...] | None:
        found = self._types.get(name)
        return found.shape if found else None

    def _fixed(self, name: str) -> list[int]:
        """Return the dimensions of a tensor that are numbers."""
        return fixed_sizes(self._shape(name))

    def _bytes(self, name: str) -> int | None:
        """Return a tensor's size in bytes, four per element of unknown type."""
        found = self._types.get(name)
        if found is None or found.shape is None:
            return None
        fixed = self._fixed(name)
        if len(fixed) < len(found.shape):
            return None
        return prod(fixed) * _ITEM_BYTES.get(found.dtype, 4)

    def _check_runs(self) -> None:
        readers: Counter[str] = Counter()
        for node in self._order:
            readers.update(set(node.input))
        run: dict[str, int] = {}
        for node in self._order:
            if node.op_type not in _ELEMENTWISE:
                continue
            before = [run.get(name, 0) for name in node.input if readers[name] == 1]
            longest = 1 + max(before, default=0)
            run.update(dict.fromkeys(node.output, longest))
            if longest > MAX_ELEMENTWISE_RUN:
                raise _LimitError(
                    f"more than {MAX_ELEMENTWISE_RUN} elementwise operators follow each other up "
                    f"to node {_name(node)}: their kernel would take minutes to compile. Simplify "
                    "the graph."
                )


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return list(chain.from_iterable(map(subgraphs_of, node.attribute)))


def _name(node: onnx.NodeProto) -> str:
    return repr(node.name or next(iter(node.output), node.op_type))
