"""The manifest beside every engine file: what it is, what it was made of, and where it may run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qat_lib.engines.values import PrecisionSummary, TensorInfo
from qat_lib.errors import EngineLoadError

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class EngineManifest:
    """Everything that must be known to use an engine file safely.

    Args:
        backend: ``tensorrt``, ``openvino`` or ``onnxruntime``.
        backend_version: exact version of the library that built it.
        device: CPU (architecture, name, flags) or GPU (name, compute capability, driver) it was built on.
        digest: SHA-256 of the engine file.
        bytes: its size.
        precision: INT8 layers of weighted layers, as the backend reports them after the build.
        inputs: name, shape and dtype of each input.
        outputs: likewise of each output.
        source: path and SHA-256 of the ONNX file.
        nodes: ONNX node of each name that a backend may use for it, to read fused layers by.
        weighted_nodes: ONNX nodes that multiply by constant weights.
        quantized: whether the ONNX graph holds Q/DQ pairs.
        spec: the build spec, enough to build again.
        properties: what the backend was told at the compilation, in its own words; empty where it has no such list.
        preprocessing: how raw input becomes the model's; None where neither the builder nor the ONNX file says.
        preprocessing_embedded: whether the engine does that itself, so that it takes raw images.
        layout: ``NHWC`` or ``NCHW`` by image input, where the ONNX file says.
        classes: class names in label order.
        device_memory_bytes: device memory of one execution context besides the weights; None on a CPU.
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
    quantized: bool = False
    preprocessing: Mapping[str, Any] | None = None
    preprocessing_embedded: bool = False
    layout: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    git: Mapping[str, Any] | None = None
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the manifest as indented JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineManifest:
        """Return the manifest that :meth:`to_json` wrote."""
        fields = dict(values)
        fields["precision"] = PrecisionSummary(**fields["precision"])
        for side in ("inputs", "outputs"):
            fields[side] = tuple(TensorInfo(**{**item, "shape": tuple(item["shape"])}) for item in fields[side])
        fields["classes"] = tuple(fields["classes"])
        fields["weighted_nodes"] = tuple(fields["weighted_nodes"])
        return cls(**fields)


def manifest_path(engine: Path) -> Path:
    """Return where the manifest of ``engine`` lies: ``model.engine.json`` beside ``model.engine``."""
    return engine.with_name(engine.name + ".json")


def layers_path(engine: Path) -> Path:
    """Return where the layer list of ``engine`` lies: ``model.layers.json`` beside ``model.engine``."""
    return engine.with_suffix(".layers.json")


def read_manifest(engine: Path) -> EngineManifest:
    """Read the manifest of ``engine``.

    Raises:
        EngineLoadError: it is missing, is not JSON, or is of another format.
    """
    path = manifest_path(engine)
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise EngineLoadError(
            f"The engine {engine} needs its manifest {path.name} beside it, which says what the file is and where it "
            "may run. Copy both files together, or build the engine again."
        ) from error
    except (OSError, ValueError) as error:
        raise EngineLoadError(
            f"The manifest {path} can't be read ({error}). Copy it again, or build the engine again."
        ) from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        received = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise EngineLoadError(
            f"The manifest {path} has format {received!r}, expected {FORMAT}. Build the engine again with this version."
        )
    try:
        return EngineManifest.from_dict(values)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineLoadError(f"The manifest {path} is incomplete ({error}). Build the engine again.") from error
