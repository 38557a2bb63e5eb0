"""Sources of packages: an engine, an ONNX file, a run, or a champion."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qat_lib.engines.manifest import EngineManifest, manifest_path
from qat_lib.engines.manifest_file import read_manifest
from qat_lib.errors import ConfigError, EngineLoadError
from qat_lib.support.digests import sha256_of_file
from qatline.components.artifacts import Engines, Evaluation, Exported
from qatline.components.artifacts.variants import CANDIDATE_VARIANT
from qatline.components.report import ReportFolders
from qatline.components.store.manifest import read_step_manifest
from qatline.components.support.model_names import served_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Files of a model, with their origin.

    Attributes:
        name: name to serve it under, if none is given.
        graph: the ONNX file.
        engine: the engine file, next to its manifest; None without one.
        manifest: manifest of the engine.
        card: the model card in Markdown; empty without one.
        origin: run, or model and version of a registry.
        quantization: settings of the quantization.
    """

    name: str
    graph: Path
    engine: Path | None = None
    manifest: EngineManifest | None = None
    card: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)


def file_source(path: Path) -> ModelSource:
    """Return the source of an engine or ONNX file.

    Raises:
        ConfigError: the ONNX file of the engine is gone or has changed.
        EngineLoadError: the manifest of the engine is missing or damaged.
    """
    if path.suffix == ".onnx":
        return ModelSource(name=served_name(path.stem), graph=path)
    manifest = read_manifest(path)
    if sha256_of_file(path) != manifest.digest:
        raise EngineLoadError(
            f"{path} differs from its manifest {manifest_path(path).name}: it is damaged. Copy both "
            "again, or build the engine again."
        )
    graph = Path(manifest.source["path"])
    if not graph.is_file() or sha256_of_file(graph) != manifest.source["sha256"]:
        raise ConfigError(
            f"Expected the ONNX file that {path} was built from, for its names, shapes and types: "
            f"{graph} is gone or has changed. Package the run or the ONNX file instead."
        )
    return ModelSource(name=served_name(path.stem), graph=graph, engine=path, manifest=manifest)


def run_source(name: str, folders: ReportFolders, card: str) -> ModelSource:
    """Return the source of a run's candidate.

    Args:
        name: name of its model.
        folders: outputs of the steps.
        card: the model card in Markdown; empty without one.

    Raises:
        ConfigError: the engine failed its check.
        StepError: a file of the run is missing.
    """
    engine = Engines(folders.engines).engine(CANDIDATE_VARIANT)
    check = Evaluation(folders.evaluation).measurements().infrastructure_check
    if check is not None and not check.passed:
        raise ConfigError(
            "Expected an engine that gives the outputs of its ONNX file. Received: one that failed "
            f"its check: {check.message} Run again with another backend (engine.backend)."
        )
    quantized = read_step_manifest(folders.ptq)
    return ModelSource(
        name=served_name(name),
        graph=Exported(folders.onnx).graph(CANDIDATE_VARIANT),
        engine=engine,
        manifest=read_manifest(engine),
        card=card,
        quantization=quantized.settings.get("quantization", {}),
    )
