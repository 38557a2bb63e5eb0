"""Read an ONNX file that anyone may have written, in bounded time and memory.

Weights in external files are not loaded: a view of the graph needs their shapes only. Every way in
which a file can be unusable ends in one :class:`~qat_lib.errors.ExportError` that says what is
wrong with it. Every reader of ONNX files in this project opens them here.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qat_lib.errors import ExportError
from qat_lib.onnx_view.external_data import check_external_data
from qat_lib.onnx_view.tensor_data import check_tensor_data
from qat_lib.onnx_view.wire import MAX_NODES, WireError, check_wire

#: Protobuf's own limit for one message.
MAX_FILE_BYTES = 2**31 - 1
OLDEST_OPSET = 7


def load_model(path: str | Path) -> onnx.ModelProto:
    """Read ``path`` into a ModelProto without external data, with functions inlined.

    Raises:
        ExportError: there is no such file, it is no ONNX model, it is damaged, external data is
            missing or lies outside the model's folder, its operator set is unknown, or it is larger
            than the limits of this module and of :mod:`qat_lib.onnx_view.wire`.
    """
    path = Path(path)
    model = _parse(path, _read(path))
    _check_text(path, model)
    _check_opset(path, model)
    model = _inline_functions(path, model)
    check_external_data(path, tensors_of(model.graph))
    check_tensor_data(path, tensors_of(model.graph))
    return model


def _read(path: Path) -> bytes:
    """Return the bytes of a file that is worth parsing."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ExportError(
                f"Expected an ONNX file. Received the directory {path}. Name the .onnx file in it."
            )
        if not path.is_file():  # a pipe or a device, which may never end
            raise ExportError(
                f"Expected an ONNX file. Received {path}, which is no regular file. Copy it into "
                "one."
            )
        if size > MAX_FILE_BYTES:
            raise ExportError(
                f"Expected an ONNX file of less than 2 GiB. Received {path} with {size:,} bytes. "
                "Save the weights as external data (onnx.save_model(..., "
                "save_as_external_data=True))."
            )
        if size:
            # Mapped, so that the bytes of a large file that is no ONNX are never in memory.
            with (
                path.open("rb") as stream,
                mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                check_wire(data)
        return path.read_bytes()
    except WireError as error:
        raise _unreadable(path, error) from error
    except OSError as error:
        raise ExportError(
            f"Expected a readable ONNX file. Received {path}: {error.strerror or error}."
        ) from error


def _unreadable(path: Path, error: Exception) -> ExportError:
    return ExportError(
        f"Expected an ONNX file. Received {path}, which can't be read: {error}. Export or copy it "
        "again."
    )


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise _unreadable(path, error) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ExportError(
            f"Expected an ONNX model with a graph. Received {path} ({len(data):,} bytes), which "
            "holds none: it is another kind of file or was cut off. Export or copy it again."
        )
    return model


def _check_text(path: Path, model: onnx.ModelProto) -> None:
    """Protobuf hands a text that is not valid UTF-8 on as bytes.

    Nothing behind this expects that.
    """
    graph = model.graph
    texts: list[object] = [graph.name, *(entry.domain for entry in model.opset_import)]
    for value in (*graph.input, *graph.output, *graph.value_info):
        texts.append(value.name)
        texts.extend(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in tensors_of(graph):
        texts.append(tensor.name)
        texts.extend(text for entry in tensor.external_data for text in (entry.key, entry.value))
    bodies = (graph.node, *(function.node for function in model.functions))
    for node in (node for body in bodies for node in nodes_of(body)):
        texts.extend((node.name, node.op_type, node.domain, *node.input, *node.output))
        texts.extend(attribute.name for attribute in node.attribute)
    if not all(isinstance(text, str) for text in texts):
        raise ExportError(
            f"Expected an ONNX file. Received {path}, in which a name is no text: it is damaged. "
            "Export it again."
        )


def _check_opset(path: Path, model: onnx.ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) == 1 and OLDEST_OPSET <= versions[0] <= newest:
        return
    received = (
        f"opset {versions[0]}"
        if len(versions) == 1
        else f"{len(versions)} entries for the ONNX operator set"
    )
    raise ExportError(
        f"Expected an ONNX model of opset {OLDEST_OPSET} to {newest}. Received {path} with "
        f"{received}. Export it with opset 17, or convert it with onnx.version_converter."
    )


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor that a graph holds: initializers and attributes, subgraphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for subgraph in subgraphs_of(attribute):
                yield from tensors_of(subgraph)


def subgraphs_of(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Return the graphs that an attribute holds (the branches of an If, the body of a Loop)."""
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)


def nodes_of(nodes: Any) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of the graphs inside of them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for subgraph in subgraphs_of(attribute):
                yield from nodes_of(subgraph.node)


def _operators(nodes: Any) -> Counter[tuple[str, str]]:
    return Counter((node.domain, node.op_type) for node in nodes_of(nodes))


def _inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace calls of model-local functions by their bodies, if the result is small enough."""
    functions = {(function.domain, function.name): function for function in model.functions}
    calls = {
        key: Counter((n.domain, n.op_type) for n in nodes_of(function.node))
        for key, function in functions.items()
    }
    sizes: dict[tuple[str, str], int] = {}
    open_calls: set[tuple[str, str]] = set()

    def expanded(counts: Counter[tuple[str, str]]) -> int:
        return sum(
            times * (size_of(key) if key in functions else 1) for key, times in counts.items()
        )

    def size_of(key: tuple[str, str]) -> int:
        if key in open_calls or len(open_calls) > 100:
            raise ExportError(
                f"Expected functions that end. Received {path}, whose function {key[1]!r} calls "
                "itself."
            )
        if key not in sizes:
            open_calls.add(key)
            sizes[key] = expanded(calls[key])
            open_calls.remove(key)
        return sizes[key]

    for key in functions:
        size_of(key)
    total = expanded(_operators(model.graph.node))
    if total > MAX_NODES:
        raise ExportError(
            f"Expected a graph of at most {MAX_NODES:,} nodes. Received {path} with {total:,}."
        )
    if not functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ExportError(
            f"Expected functions that can be inlined. Received {path}: {error}."
        ) from error
