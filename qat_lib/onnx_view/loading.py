"""Read an ONNX file that anyone may have written, in bounded time and memory.

Weights in external files are not loaded: an analysis needs their shapes only. Every way in which a file can be
unusable ends in one :class:`~qat_lib.errors.ExportError` that says what is wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qat_lib.errors import ExportError
from qat_lib.onnx_view.wire import WireError, check_wire

#: Protobuf's own limit for one message.
MAX_FILE_BYTES = 2**31 - 1
MAX_NODES = 200_000
OLDEST_OPSET = 7


def load_model(path: str | Path) -> onnx.ModelProto:
    """Read ``path`` and return its ModelProto, without the contents of external data, with functions inlined.

    Raises:
        ExportError: there is no such file, it is no ONNX model, it is damaged, external data is missing, its
            operator set is unknown, or it is larger than the limits of this module.
    """
    path = Path(path)
    model = _parse(path)
    _check_text(path, model)
    _check_opset(path, model)
    _check_external_data(path, model)
    return _inline_functions(path, model)


def _parse(path: Path) -> onnx.ModelProto:
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ExportError(f"Expected an ONNX file. Received the directory {path}. Name the .onnx file in it.")
        if not path.is_file():  # a pipe or a device, which may never end
            raise ExportError(f"Expected an ONNX file. Received {path}, which is no regular file. Copy it into one.")
        if size > MAX_FILE_BYTES:
            raise ExportError(
                f"Expected an ONNX file of less than 2 GiB. Received {path} with {size:,} bytes. "
                "Save the weights as external data (onnx.save_model(..., save_as_external_data=True))."
            )
        data = path.read_bytes()
    except OSError as error:
        raise ExportError(f"Expected a readable ONNX file. Received {path}: {error.strerror or error}.") from error
    model = onnx.ModelProto()
    try:
        check_wire(data)
        model.ParseFromString(data)
    except (WireError, DecodeError) as error:
        raise ExportError(
            f"Expected an ONNX file. Received {path}, which can't be read: {error}. Export or copy it again."
        ) from error
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ExportError(
            f"Expected an ONNX model with a graph. Received {path} ({size:,} bytes), which holds none: "
            "it is another kind of file or was cut off. Export or copy it again."
        )
    return model


def _check_text(path: Path, model: onnx.ModelProto) -> None:
    """Protobuf hands a text that is not valid UTF-8 on as bytes; nothing behind this expects that."""
    graph = model.graph
    texts: list[object] = [graph.name, *(entry.domain for entry in model.opset_import)]
    for value in (*graph.input, *graph.output, *graph.value_info):
        texts.append(value.name)
        texts.extend(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in _tensors(graph):
        texts.append(tensor.name)
        texts.extend(text for entry in tensor.external_data for text in (entry.key, entry.value))
    bodies = (graph.node, *(function.node for function in model.functions))
    for node in (node for body in bodies for node in _nodes(body)):
        texts.extend((node.name, node.op_type, node.domain, *node.input, *node.output))
        texts.extend(attribute.name for attribute in node.attribute)
    if not all(isinstance(text, str) for text in texts):
        raise ExportError(
            f"Expected an ONNX file. Received {path}, in which a name is no text: it is damaged. Export it again."
        )


def _check_opset(path: Path, model: onnx.ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) == 1 and OLDEST_OPSET <= versions[0] <= newest:
        return
    received = f"opset {versions[0]}" if len(versions) == 1 else f"{len(versions)} entries for the ONNX operator set"
    raise ExportError(
        f"Expected an ONNX model of opset {OLDEST_OPSET} to {newest}. Received {path} with {received}. "
        "Export it with opset 17, or convert it with onnx.version_converter."
    )


def _check_external_data(path: Path, model: onnx.ModelProto) -> None:
    folder = path.resolve().parent
    for tensor in _tensors(model.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        data_path = folder / location
        inside = bool(location) and "\x00" not in location and data_path.resolve().is_relative_to(folder)
        if not inside or not data_path.is_file():
            problem = "which does not exist" if inside else f"which is not a file inside {folder}"
            raise ExportError(
                f"Expected the external data of {path} beside it. Tensor {tensor.name!r} lies in {location!r}, "
                f"{problem}. Copy the data file together with the model."
            )


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for subgraph in subgraphs_of(attribute):
                yield from _tensors(subgraph)


def subgraphs_of(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Return the graphs that an attribute holds (the branches of an If, the body of a Loop)."""
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)


def _nodes(nodes: Any) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for subgraph in subgraphs_of(attribute):
                yield from _nodes(subgraph.node)


def _inline_functions(path: Path, model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace calls of model-local functions by their bodies, after the result's size is known to be bounded."""
    functions = {(function.domain, function.name): function for function in model.functions}
    calls = {key: Counter((n.domain, n.op_type) for n in _nodes(function.node)) for key, function in functions.items()}
    sizes: dict[tuple[str, str], int] = {}
    open_calls: set[tuple[str, str]] = set()

    def expanded(counts: Counter[tuple[str, str]]) -> int:
        return sum(times * (size_of(key) if key in functions else 1) for key, times in counts.items())

    def size_of(key: tuple[str, str]) -> int:
        if key in open_calls or len(open_calls) > 100:
            raise ExportError(f"Expected functions that end. Received {path}, whose function {key[1]!r} calls itself.")
        if key not in sizes:
            open_calls.add(key)
            sizes[key] = expanded(calls[key])
            open_calls.remove(key)
        return sizes[key]

    for key in functions:
        size_of(key)
    total = expanded(Counter((node.domain, node.op_type) for node in _nodes(model.graph.node)))
    if total > MAX_NODES:
        raise ExportError(f"Expected a graph of at most {MAX_NODES:,} nodes. Received {path} with {total:,}.")
    if not functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ExportError(f"Expected functions that can be inlined. Received {path}: {error}.") from error
