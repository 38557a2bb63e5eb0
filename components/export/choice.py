"""What the export is for.

The target of the graphs, the sign of their integers, and whether FP16 is among them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from qat_lib.core.deployment import Deployment
from qat_lib.engines import cpu_kind
from qat_lib.errors import BackendUnavailableError, ConfigError
from qatline.components.settings import (
    EngineSettings,
    ExportSettings,
    QuantizationSettings,
    Settings,
)


@dataclass(frozen=True, kw_only=True)
class ExportChoice:
    """The graphs' target, and whether an FP16 graph is written."""

    target: str
    fp16: bool


def engine_dependencies(engine: EngineSettings) -> EngineSettings:
    """Return the engine settings that the export depends on, with ``auto`` resolved.

    The rest of the section must not decide whether an export can be reused, and what ``auto`` means
    here must.
    """
    backend: Any = engine.backend
    if backend == "auto":
        # Without any, the step says so, where errors are reported.
        with suppress(BackendUnavailableError):
            backend = _choose("auto")
    return EngineSettings(backend=backend, fp16=engine.fp16)


def target_dependencies(export: ExportSettings, engine: EngineSettings) -> dict[str, Settings]:
    """Return the settings that decide about the target, with ``auto`` resolved."""
    cpu: Any = cpu_kind() if engine.cpu == "auto" else engine.cpu
    backend = engine_dependencies(engine).backend
    return {
        "export": ExportSettings(target=export.target),
        "engine": EngineSettings(backend=backend, cpu=cpu),
    }


def choose_export(export: ExportSettings, engine: EngineSettings) -> ExportChoice:
    """Return what to export.

    TensorRT 10.12 and newer take FP16 from the graph alone, so for that backend ``fp16: auto``
    writes it.

    Raises:
        ConfigError: the target is for another backend than the one that the engines are built with.
        ExportError: another option is not for the target.
        BackendUnavailableError: backend and target are ``auto``, and no backend works here.
    """
    backend: str = engine.backend
    if backend == "auto" and export.target == "auto":
        backend = _choose("auto")
    target = backend if export.target == "auto" else export.target
    if (problem := target_problem(target, backend)) is not None:
        raise ConfigError(problem)
    export.model_copy(update={"target": target}).options()
    wanted = engine.fp16 == "always" or (engine.fp16 == "auto" and backend == "tensorrt")
    return ExportChoice(target=target, fp16=wanted)


def choose_integers(
    quantization: QuantizationSettings, export: ExportSettings, engine: EngineSettings
) -> dict[str, Any]:
    """Return ``unsigned`` and ``cpu`` of a plan: how the engine computes with integers.

    Where no backend works on this machine, ``auto`` takes signed ones, which every backend runs.

    Raises:
        ConfigError: they are asked for, and the target or the backend is TensorRT.
    """
    try:
        place = Deployment.on(engine.backend, engine.cpu)
        target = choose_export(export, engine).target
    except BackendUnavailableError:
        cpu = cpu_kind() if engine.cpu == "auto" else engine.cpu
        return {"unsigned": quantization.unsigned == "always", "cpu": cpu}
    if (problem := sign_problem(quantization.unsigned, target, place.backend)) is not None:
        raise ConfigError(problem)
    # A graph for TensorRT runs in every backend, also on a CPU.
    unsigned = quantization.unsigned != "never" and place.unsigned and target != "tensorrt"
    return {"unsigned": unsigned, "cpu": place.cpu}


def target_problem(target: str, backend: str) -> str | None:
    """Return why the export target does not fit the backend, or None."""
    if (target, backend) != ("openvino", "tensorrt"):
        return None
    return (
        "export.target=openvino stores unsigned activations, which TensorRT refuses. Received: "
        "engine.backend=tensorrt. Set export.target to auto or tensorrt."
    )


def sign_problem(unsigned: str, target: str, backend: str) -> str | None:
    """Return why the signedness does not fit target or backend, or None."""
    if unsigned != "always" or "tensorrt" not in (target, backend):
        return None
    where = "engine.backend" if backend == "tensorrt" else "export.target"
    return (
        "quantization.unsigned=always gives unsigned activations, which TensorRT refuses. "
        f"Received: {where}=tensorrt. Set quantization.unsigned to auto or never, or backend and "
        "target to openvino."
    )


def _choose(wanted: str) -> str:
    from qat_lib.engines import choose_backend

    return choose_backend(wanted)
