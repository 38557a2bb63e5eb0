"""Record what a step computed, as the table of the steps says.

The launcher records the steps that it finds in the store in the same way, so that a run looks the
same whether its steps were executed or reused.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components.artifacts import Promotion
from components.data.info import DatasetInfo
from components.settings import Settings
from components.steps import STEP_BY_NAME
from components.store.directories import Manifest
from components.store.fingerprints import library_versions
from components.tracking.tracker import StepTracker
from qat_lib.errors import StepError

MAX_PARAM = 500


def log_settings(
    tracker: StepTracker, sections: Mapping[str, Settings], *, seed: int, key: str
) -> None:
    """Record settings and seed as flat params, metadata as tags.

    The tags hold the key, versions and git state.
    """
    params: dict[str, Any] = {"run.seed": seed}
    for name, section in sections.items():
        params.update(flatten(section.model_dump(mode="json"), name))
    tracker.log_params(params)
    tracker.set_tags({"qatline.key": key, **environment_tags()})


def log_outputs(tracker: StepTracker, step: str, directory: Path, manifest: Manifest) -> None:
    """Record a finished output directory's metrics and files.

    The table of the steps says which.

    Raises:
        StepError: a file that should be JSON is not.
        TrackingError: the store refuses.
    """
    outputs = STEP_BY_NAME[step].tracked
    tracker.log_metrics(manifest.metrics)
    tracker.set_tags({"qatline.output_digest": manifest.digest})
    for path in _matches(directory, outputs.history):
        tracker.log_history(_read_json(path))
    for path in _matches(directory, outputs.dataset):
        tracker.log_dataset(DatasetInfo.load(path.parent))
    for pattern, names in outputs.tags.items():
        for path in _matches(directory, (pattern,)):
            tracker.set_tags(
                {
                    f"{path.stem}.{name}": text
                    for name, text in _named(_read_json(path), names).items()
                }
            )
    for path in _matches(directory, outputs.artifacts):
        folder = path.parent.relative_to(directory).as_posix()
        tracker.log_artifact(path, "" if folder == "." else folder)
    for path in _matches(directory, outputs.onnx):
        tracker.log_onnx(path, path.stem)
    for path in _matches(directory, outputs.champion):
        name = Promotion(directory).verdict().model
        tracker.register_champion(
            path, name, manifest.files[path.relative_to(directory).as_posix()].sha256
        )


def flatten(value: Any, prefix: str) -> dict[str, Any]:
    """Return nested mappings as ``{"prefix.key.key": scalar}``; a list becomes compact JSON.

    A text beyond 500 characters ends in "...": the store would cut it anyway, and the whole is in
    an artifact.
    """
    if isinstance(value, Mapping):
        return {
            name: item
            for key in value
            for name, item in flatten(value[key], f"{prefix}.{key}").items()
        }
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    if isinstance(value, str) and len(value) > MAX_PARAM:
        value = value[: MAX_PARAM - 3] + "..."
    return {prefix: value}


def environment_tags() -> dict[str, str]:
    """Return library versions and the state of the git tree as tags."""
    versions = {name: text for name, text in library_versions().items() if text}
    tags = {f"version.{name}": text for name, text in versions.items()} | {
        "host.system": platform.platform()
    }
    commit = _git("rev-parse", "HEAD")
    if commit:
        tags |= {
            "git.commit": commit,
            "git.dirty": str(bool(_git("status", "--porcelain"))).lower(),
        }
    return tags


def _git(*arguments: str) -> str:
    """Return a git command's output, or "" without git or a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, timeout=5, check=False
        )
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
    """Return a JSON object's values below the keys, flattened to text.

    Nulls are left out.
    """
    chosen = (
        {name: value[name] for name in names if name in value} if isinstance(value, Mapping) else {}
    )
    items = flatten(chosen, "").items()
    return {name.removeprefix("."): str(item) for name, item in items if item is not None}
