"""Packages of each kind, from a source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from qat_lib.engines import choose_backend, get_backend
from qat_lib.engines.environment import cpu_kind
from qat_lib.engines.manifest import manifest_path
from qat_lib.engines.onnx_graph import read_model, read_summary
from qat_lib.engines.spec import parse_profile
from qat_lib.errors import ConfigError, StorageError
from qat_lib.files.whole_files import folder_beside
from qat_lib.options import BackendChoice
from qat_lib.support.digests import sha256_of_file
from qatline.components.serving.kubernetes import write_kserve
from qatline.components.serving.package import (
    CARD,
    MODELS,
    VERSION,
    Package,
    served_model,
    write_client,
)
from qatline.components.serving.sources import ModelSource
from qatline.components.serving.triton_repository import choose_image, write_repository
from qatline.components.support.disk_errors import as_storage_error

Target: TypeAlias = Literal["plain", "triton", "ovms", "kserve"]
PackageBackend: TypeAlias = Literal[BackendChoice, "python"]

_CARD = "# {name}\n\nNo run is known of this model, so that data and quality are unknown.\n"


@dataclass(frozen=True, kw_only=True)
class PackageOptions:
    """Options of a package.

    Args:
        target: ``plain`` for ``qatline serve``, ``triton``, ``ovms`` (OpenVINO Model Server), or
            ``kserve`` for KServe with the server that fits the backend.
        backend: backend that computes; ``auto`` for the engine's, else ONNX Runtime in Triton and
            OpenVINO in its server. ``python`` runs ONNX Runtime in Triton's Python backend.
        name: name of the model; empty for that of the source.
        raw: Triton: whether the server preprocesses and decodes, in an ensemble.
        image: image of the server; None for the default.
        storage_uri: KServe: where the package will lie.
        max_batch_size: largest batch of models with an open batch.
    """

    target: Target = "plain"
    backend: PackageBackend = "auto"
    name: str = ""
    raw: bool = False
    image: str | None = None
    storage_uri: str = ""
    max_batch_size: int = 32


def assemble_package(source: ModelSource, folder: Path, options: PackageOptions) -> Package:
    """Write a package into a new folder, whole or not at all.

    Raises:
        ConfigError: the source or the options do not fit the target.
        EngineBuildError: the ONNX file can't be read.
        StorageError: the folder exists, or can't be written.
    """
    if folder.exists():
        raise StorageError(f"Expected a new folder for the package. Received: {folder}.")
    summary = read_summary(source.graph)
    if any(tensor.external_data for tensor in read_model(source.graph).graph.initializer):
        raise ConfigError(
            f"Expected an ONNX file with its weights inside. Received: {source.graph}, whose "
            "weights are in another file."
        )
    backend = _backend(source, options)
    server = _server(options.target, backend)
    if options.raw and server != "triton":
        raise ConfigError(
            "Only packages for Triton take --raw: qatline serve always takes raw data, and "
            "OpenVINO Model Server runs no Python. Clients of qatline preprocess themselves."
        )
    model = served_model(options.name or source.name, summary)
    is_plan = backend == "tensorrt"
    image = options.image or ""
    if server == "triton":
        image = choose_image(options.image, source.manifest if is_plan else None)
    elif server == "ovms" and not image:
        # Of the OpenVINO that writes the model.
        version = get_backend("openvino").version().split(".")
        image = f"openvino/model_server:{'.'.join(version[:2])}"
    try:
        with folder_beside(folder) as work:
            place = work / MODELS / model.name / VERSION
            place.mkdir(parents=True)
            file = _write_model(place, source, server, backend)
            if server == "triton":
                model = write_repository(
                    work,
                    model,
                    backend=backend,
                    raw=options.raw,
                    max_batch_size=_largest_batch(source, options, is_plan=is_plan),
                )
            elif server == "ovms":
                _write_ovms(work, model.name, on_cluster=options.target == "kserve")
            if options.target == "kserve":
                write_kserve(
                    work,
                    model,
                    server=server,
                    image=image,
                    storage_uri=options.storage_uri,
                    gpu=is_plan,
                )
            write_client(work)
            card = source.card or _CARD.format(name=model.name)
            (work / CARD).write_text(card, encoding="utf-8")
            package = Package(
                path=work,
                target=server,
                backend=backend,
                model=model,
                file=file.relative_to(work).as_posix(),
                origin=_origin(source),
                quantization=_quantization(source, summary.weights),
                server={"image": image} if image else {},
            ).seal()
            work.rename(folder)
            return replace(package, path=folder)
    except OSError as error:
        raise as_storage_error(error, folder) from error


def _backend(source: ModelSource, options: PackageOptions) -> PackageBackend:
    """Return the backend that computes.

    Raises:
        ConfigError: the target does not support it, or the source has no TensorRT engine.
    """
    own = source.manifest.backend if source.manifest is not None else None
    found: PackageBackend = options.backend
    if found == "auto":
        if options.target == "ovms":
            found = "openvino"
        elif own is not None:
            found = cast("PackageBackend", own)
        else:
            found = choose_backend("auto") if options.target == "plain" else "onnxruntime"
    if options.target == "ovms" and found != "openvino":
        raise ConfigError(
            f"OpenVINO Model Server runs openvino models. Received: --backend {found}. Choose "
            "another --target."
        )
    if found == "python" and options.target != "triton":
        raise ConfigError(f"Only Triton has a backend python. Received: --target {options.target}.")
    if found == "tensorrt" and own != "tensorrt" and options.target != "plain":
        raise ConfigError(
            "Expected an engine of TensorRT, which Triton runs as it is. Received: "
            f"{source.engine or source.graph}. Build one: qatline build-engine."
        )
    if options.target == "plain" and own is not None and found != own:
        raise ConfigError(
            f"Expected the backend of the engine, {own}. Received: --backend {found}. Package the "
            "ONNX file for another one."
        )
    return found


def _largest_batch(source: ModelSource, options: PackageOptions, *, is_plan: bool) -> int:
    """Return the largest batch; that of a plan is fixed at its build."""
    if not is_plan or source.manifest is None:
        return options.max_batch_size
    profiles = map(parse_profile, source.manifest.spec["shapes"].values())
    return min(options.max_batch_size, *(profile.maximum[0] for profile in profiles))


def _server(target: Target, backend: PackageBackend) -> str:
    """Return the server of a package: ``plain``, ``triton`` or ``ovms``."""
    if target != "kserve":
        return target
    return "ovms" if backend == "openvino" else "triton"


def _write_model(place: Path, source: ModelSource, server: str, backend: PackageBackend) -> Path:
    """Write the model file, and return it."""
    if server == "plain":
        shutil.copyfile(source.graph, place / "model.onnx")
        if source.engine is None or source.manifest is None:
            return place / "model.onnx"
        engine = place / "model.engine"
        shutil.copyfile(source.engine, engine)
        # The package moves: its engine refers to the ONNX file beside it.
        own = {"path": "model.onnx", "sha256": source.manifest.source["sha256"]}
        manifest = replace(source.manifest, source=own)
        manifest_path(engine).write_text(manifest.to_json(), encoding="utf-8")
        return engine
    if backend == "tensorrt":
        shutil.copyfile(cast("Path", source.engine), place / "model.plan")
        return place / "model.plan"
    if backend == "openvino":
        from qat_lib.engines.openvino import write_ir

        device = source.manifest.device if source.manifest is not None else None
        write_ir(source.graph, place / "model.xml", cpu_kind(device))
        return place / "model.xml"
    from qat_lib.engines.onnxruntime import write_exact

    write_exact(source.graph, place / "model.onnx")
    return place / "model.onnx"


def _write_ovms(work: Path, name: str, *, on_cluster: bool) -> None:
    """Write the configuration of OpenVINO Model Server."""
    mounted = "/mnt/models" if on_cluster else "/models"
    # As the engines: OpenVINO otherwise computes in bfloat16 where a CPU can.
    plugin = {"INFERENCE_PRECISION_HINT": "f32"}
    config = {"name": name, "base_path": f"{mounted}/{name}", "plugin_config": plugin}
    text = json.dumps({"model_config_list": [{"config": config}]}, indent=1)
    (work / MODELS / "config.json").write_text(text + "\n", encoding="utf-8")


def _origin(source: ModelSource) -> dict[str, Any]:
    found: dict[str, Any] = {**source.origin, "onnx_sha256": sha256_of_file(source.graph)}
    if source.manifest is not None:
        found["engine_sha256"] = source.manifest.digest
        found["backend_version"] = source.manifest.backend_version
        found["device"] = dict(source.manifest.device)
    return found


def _quantization(source: ModelSource, weights: str | None) -> Mapping[str, Any]:
    found: dict[str, Any] = {"weights": weights or "float", "settings": dict(source.quantization)}
    if source.manifest is not None:
        precision = source.manifest.precision
        found["int8_layers"] = precision.int8_layers
        found["weighted_layers"] = precision.weighted_layers
    return found
