"""A package: a folder with a model, its description and its client, ready for a server.

    package.json            the model, its origin, and the SHA-256 of every other file
    MODEL_CARD.md           data, quality, limits, quantization and speed
    client.py               example of requests, with its library in qatline_client/
    models/<name>/1/...     the model, as Triton, OpenVINO Model Server and KServe expect it

The same inputs give the same bytes. ``package.json`` is written last: a folder without it is
unfinished.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.engines.onnx_graph import GraphSummary
from qat_lib.engines.values import TensorInfo
from qat_lib.errors import ConfigError, DataError
from qat_lib.files.text_files import read_json
from qat_lib.preprocessing import read_preprocessing
from qat_lib.support.digests import sha256_of_file
from qatline.components.client.client import DATATYPES, PACKAGE

FORMAT = 1
CARD = "MODEL_CARD.md"
MODELS = "models"
VERSION = "1"

TYPES = {np.dtype(dtype).name: name for name, dtype in DATATYPES.items()}
"""Data types of the Open Inference Protocol by NumPy's names."""

_NAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,126}[a-zA-Z0-9])?")


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Description of a model for servers and clients.

    Attributes:
        name: name of the model and of its folder.
        serves: name that clients ask for: of the model, or of the ensemble around it.
        task: task of the run, or ``module:Class``; empty if unknown.
        inputs, outputs: ``name``, ``datatype`` of the Open Inference Protocol, ``shape`` with -1 for
            open dimensions, and ``layout`` such as ``NHWC``, if known.
        preprocessing: preprocessing of raw data; None if unknown.
        preprocessing_embedded: whether the model takes raw data.
        classes: class names in label order.
        decoding: how clients read answers, see ``qatline.components.client.decoding``.
    """

    name: str
    serves: str
    task: str
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    preprocessing: Mapping[str, Any] | None
    preprocessing_embedded: bool
    classes: tuple[str, ...]
    decoding: Mapping[str, Any] | None

    @property
    def raw_inputs(self) -> list[dict[str, Any]]:
        """Name, data type and shape of the data in front of the preprocessing."""
        forms, found = self.preprocessing, []
        for each in self.inputs:
            samples, *shape = each["shape"]
            if forms is None:  # the model's own input, with the channels in the last axis
                datatype = each["datatype"]
                shape = [*shape[1:], shape[0]] if each["layout"].startswith("NC") else shape
            else:
                form = forms["inputs"][each["name"]] if "inputs" in forms else forms
                datatype, shape = TYPES[form["dtype"]], form["image_shape"]
            found.append({"name": each["name"], "datatype": datatype, "shape": [samples, *shape]})
        return found


@dataclass(frozen=True, kw_only=True)
class Package:
    """An opened package.

    Attributes:
        path: its folder.
        target: its server: ``plain`` for ``qatline serve``, ``triton`` or ``ovms``.
        backend: backend that computes.
        model: the model.
        file: path of the model file, relative to the folder.
        origin: run, version of a registry, and digests of the ONNX file and engine.
        quantization: precisions of the layers, and settings of the quantization.
        server: image and version of the server, if it has one.
        files: SHA-256 by relative path of every file but ``package.json``.
    """

    path: Path
    target: str
    backend: str
    model: ServedModel
    file: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def seal(self) -> Package:
        """Write ``package.json``; return the package with the digests of its files."""
        files = {
            path.relative_to(self.path).as_posix(): sha256_of_file(path)
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
        }
        values = asdict(self) | {"files": files}
        del values["path"]
        text = json.dumps({"format": FORMAT, **values}, indent=1, sort_keys=True)
        (self.path / PACKAGE).write_text(text + "\n", encoding="utf-8")
        return replace(self, files=files)


def check_name(name: str) -> str:
    """Return the name of a served model.

    Raises:
        ConfigError: servers can't use it as a folder and part of an address.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "Expected a name of letters, digits, '.', '_' and '-', which starts and ends with a "
            f"letter or digit. Received: {name!r}."
        )
    return name


def read_package(path: Path) -> Package:
    """Open a package and verify its files.

    Raises:
        DataError: the folder is not a package, a file is missing or differs from its digest, or the
            folder of the model has another name.
    """
    file = path / PACKAGE
    if not file.is_file():
        nested = sorted(path.glob(f"*/{PACKAGE}")) if path.is_dir() else []
        advice = f" Did you mean {nested[0].parent}?" if nested else ""
        raise DataError(
            f"Expected the folder of a package with {PACKAGE}, as qatline package writes it. "
            f"Received: {path}.{advice}"
        )
    values = read_json(file, what="a package", error=DataError)
    try:
        version = values.pop("format")
        model = values.pop("model")
        for name in ("inputs", "outputs", "classes"):
            model[name] = tuple(model[name])
        package = Package(path=path, model=ServedModel(**model), **values)
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error}. Package the model again.") from error
    if version != FORMAT:
        raise DataError(
            f"{file}: expected format {FORMAT}, received {version!r}. Package the model again with "
            "this version."
        )
    for name, digest in package.files.items():
        found = path / name
        # Neither ``..`` nor a link may lead out of the package.
        if path.resolve() not in found.resolve().parents or not found.is_file():
            raise DataError(f"{path} lacks {name}, which its {PACKAGE} lists. Copy it again.")
        if sha256_of_file(found) != digest:
            raise DataError(
                f"{found} differs from its SHA-256 in {PACKAGE}: it is damaged. Copy it again."
            )
    expected = f"{MODELS}/{package.model.name}/{VERSION}/"
    if not package.file.startswith(expected) or package.file not in package.files:
        raise DataError(
            f"{file}: expected a model file in {expected}, received {package.file!r}. A model has "
            "the name of its folder. Package it again under the new name with --name."
        )
    return package


def tensors(infos: tuple[TensorInfo, ...], layout: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """Return inputs or outputs as ``ServedModel`` has them.

    Raises:
        ConfigError: servers have no name for a data type.
    """
    for info in infos:
        if info.dtype not in TYPES:
            raise ConfigError(
                f"Expected tensors of {', '.join(TYPES)} in a served model. Received: {info}."
            )
    return tuple(
        {
            "name": info.name,
            "datatype": TYPES[info.dtype],
            "shape": [-1 if size is None else size for size in info.shape],
            "layout": layout.get(info.name, ""),
        }
        for info in infos
    )


def served_model(name: str, graph: GraphSummary) -> ServedModel:
    """Return the description of a model from the summary of its ONNX file.

    Raises:
        ConfigError: the name is invalid, or the protocol has no name for a data type.
        DataError: the recorded preprocessing is damaged.
    """
    layout, form = graph.recorded(dict, "layout") or {}, graph.recorded(dict, "preprocessing")
    return ServedModel(
        name=check_name(name),
        serves=name,
        task=graph.metadata.get("task", ""),
        inputs=tensors(graph.inputs, layout),
        outputs=tensors(graph.outputs, layout),
        preprocessing=read_preprocessing(form).to_dict() if form else None,
        preprocessing_embedded=graph.metadata.get("preprocessing_embedded") == "true",
        classes=tuple(map(str, graph.recorded(list, "classes") or ())),
        decoding=graph.recorded(dict, "decoding"),
    )


def write_client(folder: Path) -> None:
    """Write the client's library and an example of its use."""
    from qatline.components import client

    library = folder / "qatline_client"
    library.mkdir()
    for path in sorted(Path(client.__file__).parent.glob("*.py")):
        shutil.copyfile(path, library / path.name)
    shutil.copyfile(Path(__file__).parent / "packaged" / "client.py", folder / "client.py")
