"""Target of the export, sign of its integers, and need for an FP16 graph."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qat_lib.core.deployment import Deployment
from qat_lib.engines import cpu_kind, get_backend
from qat_lib.errors import BackendUnavailableError, ConfigError
from qatline.components.settings import (
    EngineSettings,
    ExportSettings,
    QuantizationSettings,
    Settings,
)


@dataclass(frozen=True, kw_only=True)
class ExportChoice:
    """Target of the graphs, and whether to write an FP16 graph."""

    target: str
    fp16: bool


def engine_dependencies(engine: EngineSettings) -> EngineSettings:
    """Return the engine settings that affect the export, with ``auto`` resolved.

    Other engine settings must not prevent the reuse of an export, but the local meaning of ``auto``
    must.
    """
    backend: Any = engine.backend
    if backend == "auto":
        # Without any backend, the step itself reports the error.
        with suppress(BackendUnavailableError):
            backend = _choose("auto")
    return EngineSettings(backend=backend, fp16=engine.fp16)


def target_dependencies(export: ExportSettings, engine: EngineSettings) -> dict[str, Settings]:
    """Return the settings that determine the target, with ``auto`` resolved."""
    cpu: Any = cpu_kind() if engine.cpu == "auto" else engine.cpu
    backend = engine_dependencies(engine).backend
    return {
        "export": ExportSettings(target=export.target),
        "engine": EngineSettings(backend=backend, cpu=cpu),
    }


def choose_export(export: ExportSettings, engine: EngineSettings) -> ExportChoice:
    """Return the graphs to export.

    TensorRT 10.12 and newer read FP16 only from the graph: for that backend ``fp16: auto`` writes
    it.

    Raises:
        ConfigError: the target differs from the backend of the engines.
        ExportError: another option does not fit the target.
        BackendUnavailableError: backend and target are ``auto``, and no backend is available here.
    """
    backend: str = engine.backend
    if backend == "auto" and export.target == "auto":
        backend = _choose("auto")
    target = backend if export.target == "auto" else export.target
    if (problem := sign_problem("auto", target, backend)) is not None:
        raise ConfigError(problem)
    export.model_copy(update={"target": target}).options()
    typed = backend != "auto" and get_backend(backend).supports("typed_graphs")
    fp16 = engine.fp16 == "always" or (engine.fp16 == "auto" and typed)
    return ExportChoice(target=target, fp16=fp16)


def choose_integers(
    quantization: QuantizationSettings, export: ExportSettings, engine: EngineSettings
) -> dict[str, Any]:
    """Return ``backend``, ``cpu`` and ``unsigned`` of a ``qat_lib.PtqRecipe``.

    If no backend is available on this machine, ``auto`` selects signed integers, supported by every
    backend.

    Raises:
        ConfigError: unsigned integers are requested, and the target or the backend is TensorRT.
    """
    try:
        place = Deployment.on(engine.backend, engine.cpu)
        target = choose_export(export, engine).target
    except BackendUnavailableError:
        cpu = cpu_kind() if engine.cpu == "auto" else engine.cpu
        unsigned = quantization.unsigned == "always"
        return {"backend": "onnxruntime", "cpu": cpu, "unsigned": unsigned}
    if (problem := sign_problem(quantization.unsigned, target, place.backend)) is not None:
        raise ConfigError(problem)
    # A signed graph runs in every backend, also on a CPU.
    possible = place.unsigned and get_backend(target).supports("unsigned")
    unsigned = possible and quantization.unsigned != "never"
    return {"backend": place.backend, "cpu": place.cpu, "unsigned": unsigned}


def sign_problem(unsigned: str, target: str, backend: str) -> str | None:
    """Return the conflict between target, backend and sign of the integers, or None."""
    for setting, name in (("engine.backend", backend), ("export.target", target)):
        if name == "auto" or (chosen := get_backend(name)).supports("unsigned"):
            continue
        if target != "auto" and get_backend(target).supports("unsigned_graphs"):
            return (
                f"export.target={target} stores unsigned activations, which {chosen.title} "
                f"refuses. Received: {setting}={name}. Set export.target to auto or {name}."
            )
        if unsigned == "always":
            return (
                "quantization.unsigned=always gives unsigned activations, which "
                f"{chosen.title} refuses. Received: {setting}={name}. Set quantization.unsigned "
                "to auto or never, or backend and target to openvino."
            )
    return None


def _choose(wanted: str) -> str:
    from qat_lib.engines import choose_backend

    return choose_backend(wanted)
