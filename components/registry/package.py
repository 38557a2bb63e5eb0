"""Package of a registered version: the ONNX file as MLflow model, preprocessing and classes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qat_lib.errors import DataError, TrackingError
from qat_lib.files.text_files import read_json
from qat_lib.preprocessing import AnyPreprocessing, read_preprocessing
from qatline.components.registry.registry import DIGEST, RegisteredVersion, Registry
from qatline.components.store.fingerprints import file_digest, library_versions
from qatline.components.tracking.mlflow_run import onnx_signature
from qatline.components.tracking.store import translated

GRAPH = "model.onnx"
FACTS = "qatline.json"
BASELINE = "baseline"
CARD = "MODEL_CARD.md"


@dataclass(frozen=True, kw_only=True)
class Champion:
    """Local copy of the champion's files.

    Attributes:
        version: number of the version.
        digest: SHA-256 of its graph.
        graph: the ONNX file.
        preprocessing: conversion of raw pixels to its input; None for versions of earlier releases.
        classes: names of its outputs; empty for versions of earlier releases.
    """

    version: int
    digest: str
    graph: Path
    preprocessing: AnyPreprocessing | None = None
    classes: tuple[str, ...] = ()


def write_package(
    folder: Path,
    *,
    graph: Path,
    preprocessing: AnyPreprocessing,
    classes: Sequence[str],
    baseline: Sequence[Path],
    card: str,
) -> None:
    """Write an MLflow model into the new folder ``folder``.

    Args:
        folder: the new folder.
        graph: the ONNX file, stored byte by byte.
        preprocessing: preprocessing of its input.
        classes: names of its outputs, in order.
        baseline: files of the original FP32 model.
        card: the model card in Markdown.

    Raises:
        TrackingError: the file is not an ONNX graph, or MLflow fails to write it.
    """
    import onnx

    with translated(f"{graph.name} can't be registered"):
        from mlflow import onnx as flavour

        model, versions = onnx.load(str(graph)), library_versions()
        needs = [f"{each}=={versions[each]}" for each in ("onnx", "onnxruntime") if versions[each]]
        flavour.save_model(
            model,
            str(folder),
            signature=onnx_signature(model),
            pip_requirements=needs,
            save_as_external_data=False,
        )
    # MLflow serializes the graph again, with other bytes: restore the original, whose digest
    # identifies the version.
    shutil.copyfile(graph, folder / GRAPH)
    facts = {"preprocessing": preprocessing.to_dict(), "classes": list(classes)}
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
    (folder / BASELINE).mkdir()
    for path in baseline:
        shutil.copyfile(path, folder / BASELINE / path.name)


def fetch_champion(registry: Registry, version: RegisteredVersion, folder: Path) -> Champion:
    """Copy a version's files into an existing empty folder and open them.

    Raises:
        TrackingError: the store fails, or the files differ from the registered ones.
        DataError: the preprocessing or the classes are damaged.
    """
    registry.download(version.number, folder)
    graph = folder / GRAPH
    # A version that another tool registered has no digest.
    if not graph.is_file() or (version.digest and file_digest(graph) != version.digest):
        raise TrackingError(
            f"Version {version.number} of {registry.name!r} holds no {GRAPH} with the digest of "
            f"its tag {DIGEST}. Promote another version: qatline promote."
        )
    facts = _facts(folder / FACTS)
    preprocessing, classes = facts.get("preprocessing"), facts.get("classes", [])
    if not isinstance(classes, list):
        raise DataError(
            f"{FACTS}: expected a list of names as classes, received {type(classes).__name__}"
        )
    return Champion(
        version=version.number,
        digest=version.digest,
        graph=graph,
        preprocessing=read_preprocessing(preprocessing) if preprocessing else None,
        classes=tuple(map(str, classes)),
    )


def _facts(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path, what="the facts of a registered version", error=DataError)
    return content if isinstance(content, dict) else {}
