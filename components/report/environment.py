"""Where the figures come from: the machine, the versions, the state of the code, the data, the settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from components.report import numbers
from components.report.sources import RunData, as_mapping
from components.runtime.fingerprints import library_versions
from components.settings import GateSettings
from qat_lib.engines.environment import cpu_device, git_state

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Lists of (name, value), ready to be shown; a list may be empty."""

    versions: Pairs
    machine: Pairs
    data: Pairs
    model: Pairs
    steps: Pairs
    settings: list[tuple[str, Pairs]]


def describe_environment(run: RunData, *, gate: GateSettings, seed: int) -> Environment:
    """Collect what the report's last section shows.

    Args:
        run: The run's files; a step's manifest may hold the settings that the step ran with.
        gate: The settings of the gate, which have no manifest yet.
        seed: The run's seed.
    """
    return Environment(
        versions=_versions(),
        machine=_machine(run),
        data=_data(run),
        model=_model(run),
        steps=[
            (name, numbers.seconds(manifest.get("seconds")))
            for name, manifest in run.steps.items()
            if "seconds" in manifest
        ],
        settings=_settings(run, gate, seed),
    )


def _versions() -> Pairs:
    try:
        own = metadata.version("qatline")
    except metadata.PackageNotFoundError:
        own = "not installed"
    return [("qatline", own), *((name, text) for name, text in library_versions().items() if text)]


def _machine(run: RunData) -> Pairs:
    cpu = cpu_device()
    pairs = [
        ("processor", str(cpu["name"])),
        (
            "instruction sets",
            " ".join(flag for flag in cpu["flags"] if "vnni" in flag or "amx" in flag)
            or "no VNNI, no AMX",
        ),
        (
            "cores",
            str(
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            ),
        ),
        ("system", platform.platform()),
    ]
    for variant, manifest in run.engines.items():
        backend = manifest.get("backend")
        if backend:
            pairs.append(
                (f"{variant} engine", f"{backend} {manifest.get('backend_version', '')}".strip())
            )
    state = git_state(Path(__file__).parent)
    if state is not None:
        pairs.append(
            (
                "git",
                f"{state['commit'][:12]}{' with uncommitted changes' if state['dirty'] else ''}",
            )
        )
    return pairs


def _data(run: RunData) -> Pairs:
    info = run.dataset
    pairs = [("source", str(info.get("source") or info.get("kind", "")))] if info else []
    if info.get("image_shape"):
        pairs.append(
            ("image", " × ".join(map(str, info["image_shape"])) + f" {info.get('dtype', '')}")
        )
    if run.classes:
        pairs.append(("classes", str(len(run.classes))))
    pairs += [
        (f"{part} samples", str(count)) for part, count in as_mapping(info.get("splits")).items()
    ]
    pairs += [
        (f"preprocessing: {name}", str(value))
        for name, value in run.preprocessing.items()
        if name in ("scale", "mean", "std")
    ]
    if info.get("fingerprint"):
        pairs.append(("fingerprint", str(info["fingerprint"])))
    return pairs


def _model(run: RunData) -> Pairs:
    return [(str(name).replace("_", " "), str(value)) for name, value in run.model.items()]


def _settings(run: RunData, gate: GateSettings, seed: int) -> list[tuple[str, Pairs]]:
    sections: dict[str, Mapping[str, Any]] = {}
    for manifest in run.steps.values():
        sections |= {
            name: as_mapping(values)
            for name, values in as_mapping(manifest.get("settings")).items()
        }
    sections["gate"] = gate.model_dump(mode="json")
    return [
        ("run", [("seed", str(seed))]),
        *((name, _flat(values)) for name, values in sections.items()),
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Pairs:
    pairs: Pairs = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            pairs += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((prefix + name, str(value)))
    return pairs
