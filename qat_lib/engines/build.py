"""Build an engine and write it with its manifest and its layers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from qat_lib.engines import files
from qat_lib.engines.backend import BuildRequest, Progress, choose_backend, get_backend
from qat_lib.engines.environment import git_state
from qat_lib.engines.layer_identity import identify_layers
from qat_lib.engines.manifest import EngineManifest, layers_path, manifest_path
from qat_lib.engines.onnx_graph import (
    GraphSummary,
    check_buildable,
    read_model,
    resolve,
    summarize_graph,
)
from qat_lib.engines.spec import BuildSpec
from qat_lib.engines.values import EngineLayer, PrecisionSummary
from qat_lib.engines.verification import verify_answers
from qat_lib.errors import EngineBuildError
from qat_lib.files.output_files import check_output
from qat_lib.support.digests import sha256_of_file


@dataclass(frozen=True, kw_only=True, repr=False)
class EngineArtifact:
    """A finished engine on disk.

    Args:
        path: the engine file.
        manifest: its manifest.
        layers: layers reported by the backend after the build.
        warnings: summarized warnings of the backend, and possible errors of the CPU.
    """

    path: Path
    manifest: EngineManifest
    layers: tuple[EngineLayer, ...]
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a one-line summary of the artifact."""
        made = f"{self.manifest.backend}, {len(self.layers)} layers"
        return f"<EngineArtifact {str(self.path)!r}: {made}>"


def build_engine(
    onnx_path: Path | str,
    spec: BuildSpec | None = None,
    *,
    output: Path | str | None = None,
    verify: bool = True,
    seed: int = 0,
    on_progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> EngineArtifact:
    """Build an engine from an ONNX file, with manifest and layers.

    The build writes ``model.engine``, ``model.engine.json`` (the manifest), ``model.layers.json``
    and, if the backend logs its build, ``model.build.log``, all or none of them. Before that, the
    engine is loaded from its file and compared with ONNX Runtime on random requests (see
    ``qat_lib.engines.verification``).

    Args:
        onnx_path: the ONNX file; for an INT8 engine with symmetric INT8 Q/DQ pairs.
        spec: build options; default: for this machine. With the backend ``"auto"``, graphs that
            OpenVINO computes incorrectly are built by ONNX Runtime, with a warning.
        output: the engine file; default: the ONNX file's name with the suffix ``.engine``.
        verify: whether to compare the engine with ONNX Runtime. Disable it only for graphs that
            ONNX Runtime can't run: an unverified engine may be silently wrong.
        seed: seed of the random requests.
        on_progress: called with phase, completed steps and all steps, if the backend reports them.
        cancelled: called periodically; True stops the build without a file.

    Raises:
        EngineBuildError: the graph can't be read or built, the engine's answers differ from the
            graph's, or the files can't be written.
        BackendUnavailableError: the backend's library, driver or device is missing.
        ConfigError: the spec does not fit the graph, or the output path is invalid.
    """
    onnx, spec = Path(onnx_path), spec or BuildSpec()
    path = Path(output) if output is not None else onnx.with_suffix(".engine")
    check_output(path, inputs=[onnx])
    model = read_model(onnx)
    graph = summarize_graph(onnx, model)
    chosen = choose_backend(spec.backend)
    fallback = get_backend(chosen).fallback if spec.backend == "auto" else None
    if fallback is not None:
        given: dict[str, Any] = {"output": output, "verify": verify, "seed": seed}
        given |= {"on_progress": on_progress, "cancelled": cancelled}
        try:
            return build_engine(onnx, replace(spec, backend=chosen), **given)
        except EngineBuildError as error:
            # A cancelled build also raises EngineBuildError, but must not start the fallback.
            if cancelled is not None and cancelled():
                raise
            try:
                artifact = build_engine(onnx, replace(spec, backend=fallback), **given)
            except EngineBuildError:
                raise error from None
            warning = f"{error} {get_backend(fallback).title} built the engine instead."
            return replace(artifact, warnings=(warning, *artifact.warnings))
    spec = resolve(replace(_described(spec, graph), backend=chosen), graph)
    check_buildable(onnx, model, spec)
    del model  # frees the weights of a large network before the build
    backend = get_backend(spec.backend)
    # Before the build: the digest must describe the file that is built.
    digest = sha256_of_file(onnx)
    began = time.perf_counter()
    built = backend.build(
        BuildRequest(
            onnx=onnx, graph=graph, spec=spec, on_progress=on_progress, cancelled=cancelled
        )
    )
    if cancelled is not None and cancelled():
        raise EngineBuildError("The build was cancelled. Nothing was written.")
    manifest = EngineManifest(
        backend=spec.backend,
        backend_version=backend.version(),
        device=built.device,
        digest=sha256(built.data).hexdigest(),
        bytes=len(built.data),
        precision=PrecisionSummary.of(built.layers),
        inputs=built.inputs,
        outputs=built.outputs,
        source={"path": str(onnx.resolve()), "sha256": digest},
        spec=spec.to_dict(),
        properties=built.properties,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        build_seconds=round(time.perf_counter() - began, 3),
        nodes=graph.nodes,
        weighted_nodes=graph.weighted,
        identities=graph.identities,
        quantized=graph.weights is not None,
        preprocessing=spec.preprocessing,
        preprocessing_embedded=graph.metadata.get("preprocessing_embedded") == "true",
        classes=spec.classes,
        layout=graph.recorded(dict, "layout") or {},
        decoding=graph.recorded(dict, "decoding"),
        device_memory_bytes=built.device_memory_bytes,
        git=git_state(),
    )
    # The manifest last: it contains the digest of the engine.
    with files.together(manifest_path(path)) as write:
        # Read back from disk: the verification covers the stored bytes.
        data = write(path, built.data).read_bytes()
        with backend.open(data, manifest) as engine:
            if verify:
                verification = verify_answers(engine, onnx, half=graph.half, seed=seed)
                manifest = replace(manifest, verification=verification)
            # Only a loaded engine can measure times; the build reports the layers otherwise.
            if spec.profile:
                layers = tuple(engine.layers(timed=True))
            else:
                layers = identify_layers(built.layers, graph.identities, graph.weighted)
        if built.log:
            write(path.with_suffix(".build.log"), built.log.encode())
        write(layers_path(path), _layers_json(spec.backend, layers, built.inspector))
        write(manifest_path(path), manifest.to_json().encode())
    return EngineArtifact(path=path, manifest=manifest, layers=layers, warnings=built.warnings)


def _described(spec: BuildSpec, graph: GraphSummary) -> BuildSpec:
    """Fill in the spec's preprocessing and classes from the ONNX file."""
    return replace(
        spec,
        preprocessing=spec.preprocessing or graph.recorded(dict, "preprocessing"),
        classes=spec.classes or tuple(map(str, graph.recorded(list, "classes") or ())),
    )


def _layers_json(backend: str, layers: Sequence[EngineLayer], inspector: Any) -> bytes:
    description = {
        "backend": backend,
        "layers": [layer.to_dict() for layer in layers],
        "inspector": inspector,
    }
    return (json.dumps(description, indent=1) + "\n").encode()
