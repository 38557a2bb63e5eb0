"""The manifest of an engine file: content, source, and device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from qat_lib.engines.values import PrecisionSummary, TensorInfo
from qat_lib.onnx_view.identity import Identities

FORMAT = 2
DIGEST = "manifest_digest"


@dataclass(frozen=True, kw_only=True, repr=False)
class EngineManifest:
    """Everything that must be known to use an engine file safely.

    Args:
        backend: ``tensorrt``, ``openvino`` or ``onnxruntime``.
        backend_version: exact version of the library that built it.
        device: CPU (architecture, name, flags) or GPU (name, compute capability, driver) it was
            built on.
        digest: SHA-256 of the engine file.
        bytes: its size.
        precision: INT8 layers of weighted layers, as the backend reports them after the build.
        inputs: name, shape and dtype of each input.
        outputs: likewise of each output.
        source: path and SHA-256 of the ONNX file.
        nodes: ONNX node of each name that a backend may use for it, to read fused layers by.
        weighted_nodes: ONNX nodes that multiply by constant weights.
        identities: Keras layers and quantizers of the ONNX nodes, where the ONNX file says.
        quantized: whether the ONNX graph holds Q/DQ pairs.
        spec: the build spec, enough to build again.
        properties: what the backend was told at the compilation, in its own words; empty where it
            has no such list.
        preprocessing: how raw input becomes the model's; None where neither the builder nor the
            ONNX file says.
        preprocessing_embedded: whether the engine does that itself, so that it takes raw images.
        layout: ``NHWC`` or ``NCHW`` by image input, where the ONNX file says.
        classes: class names in label order.
        device_memory_bytes: device memory of one execution context besides the weights; None on a
            CPU.
        verification: how its answers compared with ONNX Runtime's when it was built; None where
            they were not.
        git: commit and state of the repository it was built in, or None.
        created: UTC time in ISO 8601.
        build_seconds: how long the build took.
    """

    backend: str
    backend_version: str
    device: Mapping[str, Any]
    digest: str
    bytes: int
    precision: PrecisionSummary
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    source: Mapping[str, str]
    spec: Mapping[str, Any]
    created: str
    build_seconds: float
    nodes: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    weighted_nodes: tuple[str, ...] = ()
    identities: Identities = field(default_factory=Identities)
    quantized: bool = False
    preprocessing: Mapping[str, Any] | None = None
    preprocessing_embedded: bool = False
    layout: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    verification: Mapping[str, Any] | None = None
    git: Mapping[str, Any] | None = None
    format: int = FORMAT

    def __repr__(self) -> str:
        """Return the manifest in a line."""
        return f"<EngineManifest: {self.backend} {self.backend_version}, {self.bytes:,} bytes>"

    def to_json(self) -> str:
        """Return the manifest as indented JSON with its digest."""
        return seal(asdict(self))


def seal(values: Mapping[str, Any]) -> str:
    """Return ``values`` as indented JSON, with a digest for the reader."""
    unsealed = {key: value for key, value in values.items() if key != DIGEST}
    sealed = {**unsealed, DIGEST: sha256(canonical_json(unsealed)).hexdigest()}
    return json.dumps(sealed, indent=1, sort_keys=True) + "\n"


def canonical_json(values: Mapping[str, Any]) -> bytes:
    """Return the one JSON text of ``values`` that digests are taken of."""
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def manifest_path(engine: Path) -> Path:
    """Return the path of an engine's manifest: ``model.engine.json`` of ``model.engine``."""
    return engine.with_name(engine.name + ".json")


def layers_path(engine: Path) -> Path:
    """Return the path of an engine's layer list: ``model.layers.json`` of ``model.engine``."""
    return engine.with_suffix(".layers.json")
