"""Manifest of an engine file: content, source, and device."""

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
    """Description of an engine file for its safe use.

    Args:
        backend: ``tensorrt``, ``openvino`` or ``onnxruntime``.
        backend_version: exact version of the library at the build.
        device: build device, a CPU (architecture, name, flags) or GPU (name, compute capability,
            driver).
        digest: SHA-256 of the engine file.
        bytes: size of the engine file.
        precision: INT8 layers of weighted layers, as reported by the backend after the build.
        inputs: name, shape and dtype of each input.
        outputs: name, shape and dtype of each output.
        source: path, absolute or relative to the engine, and SHA-256 of the ONNX file.
        nodes: ONNX node of each possible name in the backend, for the names of fused layers.
        weighted_nodes: ONNX nodes with constant weights.
        identities: Keras layers and quantizers of the ONNX nodes, if the ONNX file records them.
        quantized: whether the ONNX graph contains Q/DQ pairs.
        spec: the build spec, sufficient for a rebuild.
        properties: the backend's compilation properties; empty if it has none.
        preprocessing: preprocessing of raw input; None if unknown.
        preprocessing_embedded: whether the engine includes the preprocessing and takes raw images.
        layout: axis order of each input and output with three to five axes, such as ``NHWC``, if
            the ONNX file records it.
        classes: class names in label order.
        decoding: how clients read answers from the outputs, if the ONNX file records it.
        device_memory_bytes: device memory of one execution context besides the weights; None on a
            CPU.
        verification: result of the comparison with ONNX Runtime after the build; None without one.
        git: commit and state of the build's repository, or None.
        created: UTC time in ISO 8601.
        build_seconds: duration of the build.
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
    decoding: Mapping[str, Any] | None = None
    device_memory_bytes: int | None = None
    verification: Mapping[str, Any] | None = None
    git: Mapping[str, Any] | None = None
    format: int = FORMAT

    def __repr__(self) -> str:
        """Return a one-line summary of the manifest."""
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
    """Return the canonical JSON text of ``values`` for digests."""
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode()


def manifest_path(engine: Path) -> Path:
    """Return the path of an engine's manifest: ``model.engine.json`` of ``model.engine``."""
    return engine.with_name(engine.name + ".json")


def layers_path(engine: Path) -> Path:
    """Return the path of an engine's layer list: ``model.layers.json`` of ``model.engine``."""
    return engine.with_suffix(".layers.json")
