"""Interface of a backend, and selection of the available ones.

A backend is a module or package in this package with a class ``BACKEND``; its name is listed in
``qat_lib.options.Backend``. It is imported on request, and its library on first use.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

from qat_lib.engines.engine import Engine
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.onnx_graph import GraphSummary
from qat_lib.engines.request_pool import RequestLimits
from qat_lib.engines.spec import BACKENDS, BuildSpec
from qat_lib.engines.values import EngineLayer, TensorInfo
from qat_lib.errors import BackendUnavailableError, ConfigError
from qat_lib.options import Backend

logger = logging.getLogger(__name__)

Capability: TypeAlias = Literal[
    "cpu", "unsigned", "int4", "unsigned_graphs", "typed_graphs", "tf32"
]
"""Optional features of backends:

- ``cpu``: run on a CPU;
- ``unsigned``: compute with unsigned integers;
- ``int4``: read weights in INT4;
- ``unsigned_graphs``: run graphs with UINT8 for non-negative activations faster;
- ``typed_graphs``: take the float precision from the graph;
- ``tf32``: compute FP32 in TF32."""

Progress = Callable[[str, int, int], None]
"""Called with the phase, the steps done and the steps in all."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One build: ONNX file, summary, resolved spec, and callbacks.

    Args:
        onnx: the ONNX file.
        graph: its summary.
        spec: a spec with a profile for every input.
        on_progress: called for phases of the build, if the backend reports them.
        cancelled: called periodically; True stops the build with an error and without a file.
    """

    onnx: Path
    graph: GraphSummary
    spec: BuildSpec
    on_progress: Progress | None = None
    cancelled: Callable[[], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class BuiltEngine:
    """The result of a build: the engine's bytes and its description.

    Args:
        data: content of the engine file.
        device: description of the build device.
        inputs: its inputs.
        outputs: its outputs.
        layers: its layers at run time.
        inspector: the backend's description, unchanged.
        log: the build log, one message per line; empty if the backend has none.
        warnings: summarized warnings of the log.
        device_memory_bytes: device memory of one execution context besides the weights; None on a
            CPU.
        properties: the backend's compilation properties; empty if it has none.
    """

    data: bytes
    device: Mapping[str, Any]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    layers: tuple[EngineLayer, ...]
    inspector: Any = None
    log: str = ""
    warnings: tuple[str, ...] = field(default_factory=tuple)
    device_memory_bytes: int | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


class EngineBackend(Protocol):
    """The seam between the common code and one backend.

    Attributes:
        device_keys: required keys of its device description, with their types.
        rebuilds: whether loading rebuilds an engine that can't run here; for builds that take
            seconds.
        title: its name in messages.
        packages: arguments of pip that install it.
        capabilities: its optional features.
        fallback: replacement for graphs that this backend computes incorrectly, if it was chosen
            by ``auto``; default: none.
    """

    device_keys: Mapping[str, type]
    rebuilds: bool
    title: str
    packages: str
    capabilities: frozenset[Capability]
    fallback: Backend | None = None

    def supports(self, capability: Capability) -> bool:
        """Return whether the backend has a capability."""
        return capability in self.capabilities

    def version(self) -> str:
        """Return the exact library version.

        Raises:
            BackendUnavailableError: the backend can't be used.
        """

    def device(self) -> Mapping[str, Any]:
        """Describe the device that engines run on here."""

    def float_precisions(self) -> tuple[str, ...]:
        """Return the values of ``BuildSpec.float_precision`` that can run here."""

    def build(self, request: BuildRequest) -> BuiltEngine:
        """Build an engine in memory."""

    def refusal(self, manifest: EngineManifest) -> str | None:
        """Return the reason that an engine of this manifest can't run here, else None."""

    def open(
        self, data: bytes, manifest: EngineManifest, limits: RequestLimits | None = None
    ) -> Engine:
        """Return an engine loaded from the bytes of its file."""


def get_backend(name: str) -> EngineBackend:
    """Return the backend ``name`` without importing its library.

    Raises:
        ConfigError: the backend does not exist.
    """
    if name not in BACKENDS:
        raise ConfigError(f"The backends are {', '.join(BACKENDS)}. Received: {name!r}.")
    return cast(EngineBackend, importlib.import_module(f"qat_lib.engines.{name}").BACKEND())


def available_backends() -> dict[Backend, str]:
    """Return the version of each backend, or the reason that it can't be used here."""
    found: dict[Backend, str] = {}
    for name in BACKENDS:
        try:
            found[name] = get_backend(name).version()
        except BackendUnavailableError as error:
            found[name] = str(error)
    return found


def choose_backend(wanted: str) -> Backend:
    """Return ``wanted``, or for ``auto`` the first usable backend.

    The order is TensorRT, OpenVINO, ONNX Runtime.

    Raises:
        BackendUnavailableError: the wanted backend, or every backend, is missing here.
    """
    if wanted != "auto":
        name = cast(Backend, wanted)
        get_backend(name).version()
        return name
    reasons = []
    for name in BACKENDS:
        try:
            get_backend(name).version()
        except BackendUnavailableError as error:
            logger.info("backend %s is skipped: %s", name, error)
            reasons.append(f"{name}: {error}")
            continue
        return name
    raise BackendUnavailableError("No engine backend works here.\n" + "\n".join(reasons))
