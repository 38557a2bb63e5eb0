"""What each step hands to the tracking server, as data.

The launcher uses the same table for the steps that it finds in the store, so that a run looks the same
whether its steps were executed or reused.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.runtime.artifacts import Manifest
from components.runtime.fingerprints import library_versions
from components.runtime.tracking import StepTracker
from components.settings import Settings
from qat_lib.errors import StepError

MAX_PARAM = 500


@dataclass(frozen=True, kw_only=True)
class TrackedOutputs:
    """Which files of a step's output directory are recorded, and as what. Each is a glob; a missing file is no error.

    ``artifacts`` are stored as they are. ``history`` is a JSON list of epochs that becomes curves. ``onnx``
    are models with a signature. ``champion`` is a model to register under the name that ``verdict.json`` gives.
    ``dataset`` is the description of the data. ``tags`` maps a glob of JSON
    objects to the keys in them that become tags, prefixed with the file's name; a name stands for
    all below it.
    """

    artifacts: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    champion: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


TRACKED: Mapping[str, TrackedOutputs] = {
    "prepare_data": TrackedOutputs(artifacts=("dataset.json", "preprocessing.json"), dataset=("dataset.json",)),
    "train_baseline": TrackedOutputs(
        artifacts=("metrics.json", "history.json", "model.json"),
        history=("history.json",),
        tags={"model.json": ("name", "source", "parameters", "input_shape", "trained_here")},
    ),
    "quantize_model": TrackedOutputs(artifacts=("plan.json", "spec.json", "ranges.json", "metrics.json")),
    "finetune_qat": TrackedOutputs(
        artifacts=("plan.json", "ranges.json", "history.json", "metrics.json"), history=("history.json",)
    ),
    "export_onnx": TrackedOutputs(
        artifacts=("plan.json", "export.json", "analysis.json", "analysis.html"), onnx=("qat.onnx",)
    ),
    "build_engine": TrackedOutputs(
        artifacts=("*.engine", "*.engine.json", "*.layers.json", "build.json"),
        # The target of an engine: what it may run on, and what it turned out to be.
        tags={"*.engine.json": ("backend", "backend_version", "device", "digest", "precision", "quantized")},
    ),
    "evaluate": TrackedOutputs(artifacts=("evaluation.json", "**/*.png")),
    "promote": TrackedOutputs(artifacts=("verdict.json", "report.html"), champion=("champion.onnx",)),
}


def log_settings(tracker: StepTracker, sections: Mapping[str, Settings], *, seed: int, key: str) -> None:
    """Record the settings as flat params (``qat.epochs``), the seed, and as tags the key, versions and git state."""
    params: dict[str, Any] = {"run.seed": seed}
    for name, section in sections.items():
        params.update(flatten(section.model_dump(mode="json"), name))
    tracker.log_params(params)
    tracker.set_tags({"qatline.key": key, **environment_tags()})


def log_outputs(tracker: StepTracker, step: str, directory: Path, manifest: Manifest) -> None:
    """Record metrics and files of a finished output directory, as ``TRACKED`` says for this step.

    Raises:
        StepError: a file that should be JSON is not.
        TrackingError: the store refuses.
    """
    outputs = TRACKED.get(step, TrackedOutputs())
    tracker.log_metrics(manifest.metrics)
    tracker.set_tags({"qatline.output_digest": manifest.digest})
    for path in _matches(directory, outputs.history):
        tracker.log_history(_read_json(path))
    for path in _matches(directory, outputs.dataset):
        tracker.log_dataset(_read_json(path))
    for pattern, names in outputs.tags.items():
        for path in _matches(directory, (pattern,)):
            tracker.set_tags({f"{path.stem}.{name}": text for name, text in _named(_read_json(path), names).items()})
    for path in _matches(directory, outputs.artifacts):
        folder = path.parent.relative_to(directory).as_posix()
        tracker.log_artifact(path, "" if folder == "." else folder)
    for path in _matches(directory, outputs.onnx):
        tracker.log_onnx(path, path.stem)
    for path in _matches(directory, outputs.champion):
        name = str(_read_json(directory / "verdict.json")["model"])
        tracker.register_champion(path, name, manifest.files[path.relative_to(directory).as_posix()].sha256)


def flatten(value: Any, prefix: str) -> dict[str, Any]:
    """Return nested mappings as ``{"prefix.key.key": scalar}``; a list becomes compact JSON.

    A text beyond 500 characters ends in "...": the store would cut it anyway, and the whole is in an artifact.
    """
    if isinstance(value, Mapping):
        return {name: item for key in value for name, item in flatten(value[key], f"{prefix}.{key}").items()}
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    if isinstance(value, str) and len(value) > MAX_PARAM:
        value = value[: MAX_PARAM - 3] + "..."
    return {prefix: value}


def environment_tags() -> dict[str, str]:
    """Return the versions of what runs here and the state of the git working tree, as tags."""
    versions = {name: text for name, text in library_versions().items() if text}
    tags = {f"version.{name}": text for name, text in versions.items()} | {"host.system": platform.platform()}
    commit = _git("rev-parse", "HEAD")
    if commit:
        tags |= {"git.commit": commit, "git.dirty": str(bool(_git("status", "--porcelain"))).lower()}
    return tags


def _git(*arguments: str) -> str:
    """Return the output of a git command, or "" where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _matches(directory: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(path for path in directory.glob(pattern) if path.is_file())


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StepError(f"{path} is no JSON: {error}") from error


def _named(value: Any, names: tuple[str, ...]) -> dict[str, str]:
    """Return the values below the given keys of a JSON object, flat and as text, without nulls."""
    chosen = {name: value[name] for name in names if name in value} if isinstance(value, Mapping) else {}
    items = flatten(chosen, "").items()
    return {name.removeprefix("."): str(item) for name, item in items if item is not None}
