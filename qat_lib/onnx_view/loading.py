"""Read an untrusted ONNX file.

External weights are not loaded: a view of the graph needs their shapes only. Every defect of a file
raises one ``qat_lib.errors.ExportError`` with a description of the defect. All readers of ONNX
files in this project open them here.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qat_lib.errors import ExportError
from qat_lib.files.regular_files import read_regular
from qat_lib.onnx_view.external_data import check_external_data
from qat_lib.onnx_view.functions import inline_functions
from qat_lib.onnx_view.protos import message_names, nodes_of, tensors_of
from qat_lib.onnx_view.tensor_data import check_tensor_data

#: Protobuf's own limit for one message.
MAX_FILE_BYTES = 2**31 - 1
OLDEST_OPSET = 7


def load_onnx(path: str | Path) -> onnx.ModelProto:
    """Read ``path`` into a ModelProto without external data, with functions inlined.

    Raises:
        ExportError: the file does not exist, is not an ONNX model, is damaged, exceeds 2 GiB or has
            an unknown operator set, or external data is missing or outside of the model's folder.
    """
    path = Path(path)
    model = _parse(path, _read(path))
    _check_text(path, model)
    _check_opset(path, model)
    # Before the data checks, so that these include the tensors of functions.
    model = inline_functions(path, model)
    check_external_data(path, tensors_of(model.graph))
    check_tensor_data(path, tensors_of(model.graph))
    return model


def _read(path: Path) -> bytes:
    try:
        # Not open(): a device or a pipe would block or never end.
        return read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise ExportError(
            f"Expected a readable ONNX file. Received {path}: {error.strerror or error}."
        ) from error


def _parse(path: Path, data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ExportError(
            f"Expected an ONNX file. Received {path}, which can't be read: {error}. Export or copy "
            "it again."
        ) from error
    # Protobuf parses many other files without an error, as a message of unknown fields.
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ExportError(
            f"Expected an ONNX model with a graph. Received {path} ({len(data):,} bytes), which "
            "holds none: it is another kind of file or was cut off. Export or copy it again."
        )
    return model


def _check_text(path: Path, model: onnx.ModelProto) -> None:
    """Check that all names are text.

    Protobuf returns a string that is not valid UTF-8 as bytes, and later code requires str.
    """
    graph = model.graph
    texts: list[object] = [graph.name]
    for opset in model.opset_import:
        texts.append(opset.domain)
    for value in (*graph.input, *graph.output, *graph.value_info):
        texts.append(value.name)
        for dim in value.type.tensor_type.shape.dim:
            texts.append(dim.dim_param)
    for tensor in tensors_of(graph):
        texts.append(tensor.name)
        for entry in tensor.external_data:
            texts.extend((entry.key, entry.value))
    for body in (graph, *model.functions):
        for node in nodes_of(body.node):
            texts.extend((node.name, node.op_type, node.domain, *node.input, *node.output))
            texts.extend(message_names(node.attribute))
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
    received = f"{len(versions)} entries for the ONNX operator set"
    if len(versions) == 1:
        received = f"opset {versions[0]}"
    raise ExportError(
        f"Expected an ONNX model of opset {OLDEST_OPSET} to {newest}. Received {path} with "
        f"{received}. Export it with opset 17, or convert it with onnx.version_converter."
    )
