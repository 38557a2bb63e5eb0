"""Origin of the results: machine, versions, state of the code, data and settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from qat_lib.engines.environment import cpu_device, git_state
from qat_lib.pages import numbers
from qat_lib.preprocessing import Preprocessing, PreprocessingByInput
from qatline.components.report.sources import RunData
from qatline.components.settings import GateSettings
from qatline.components.store.fingerprints import library_versions

Pairs = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Lists of displayable (name, value) pairs; a list may be empty."""

    versions: Pairs
    machine: Pairs
    data: Pairs
    model: Pairs
    steps: Pairs
    settings: list[tuple[str, Pairs]]


def describe_environment(run: RunData, *, gate: GateSettings, seed: int) -> Environment:
    """Collect the content of the report's last section.

    Args:
        run: files of the run; a step's manifest may contain its settings.
        gate: settings of the gate, which has no manifest yet.
        seed: seed of the run.
    """
    return Environment(
        versions=_versions(),
        machine=_machine(run),
        data=_data(run),
        model=_model(run),
        steps=[(name, numbers.seconds(step.seconds)) for name, step in run.steps.items()],
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
    fast = [flag for flag in cpu["flags"] if "vnni" in flag or "amx" in flag]
    pinned = hasattr(os, "sched_getaffinity")
    pairs = [
        ("processor", str(cpu["name"])),
        ("instruction sets", " ".join(fast) or "no VNNI, no AMX"),
        ("cores", str(len(os.sched_getaffinity(0)) if pinned else os.cpu_count())),
        ("system", platform.platform()),
    ]
    for variant, engine in run.engines.items():
        if engine.backend:
            version = f"{engine.backend} {engine.backend_version}".strip()
            pairs.append((f"{variant} engine", version))
    state = git_state(Path(__file__).parent)
    if state is not None:
        changed = " with uncommitted changes" if state["dirty"] else ""
        pairs.append(("git", f"{state['commit'][:12]}{changed}"))
    return pairs


def _data(run: RunData) -> Pairs:
    pairs: Pairs = []
    info, preprocessing = run.dataset, run.preprocessing
    if info is not None:
        pairs.append(("source", info.source or info.kind))
        for name, each in info.inputs.items():
            title = "input" if len(info.inputs) == 1 else f"input {name}"
            pairs.append((title, f"{' × '.join(map(str, each.shape))} {each.dtype}"))
        if info.classes:
            pairs.append(("classes", str(len(info.classes))))
        pairs += [(f"{part} samples", str(count)) for part, count in info.splits.items()]
    if isinstance(preprocessing, PreprocessingByInput):
        for name, form in preprocessing.inputs.items():
            pairs += _preprocessing(f"preprocessing of {name}", form)
    elif preprocessing is not None:
        pairs += _preprocessing("preprocessing", preprocessing)
    if info is not None and info.fingerprint:
        pairs.append(("fingerprint", info.fingerprint))
    return pairs


def _preprocessing(title: str, form: Preprocessing) -> Pairs:
    return [
        (f"{title}: scale", str(form.scale)),
        (f"{title}: mean", str(list(form.mean))),
        (f"{title}: std", str(list(form.std))),
    ]


def _model(run: RunData) -> Pairs:
    return [(name.replace("_", " "), str(value)) for name, value in run.model.to_dict().items()]


def _settings(run: RunData, gate: GateSettings, seed: int) -> list[tuple[str, Pairs]]:
    sections: dict[str, Mapping[str, Any]] = {}
    for manifest in run.steps.values():
        sections |= manifest.settings
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
