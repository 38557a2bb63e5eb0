"""Records of a step's results, as declared by the step table.

The launcher records cached steps in the same way, so that a run looks the same whether its steps
were executed or reused.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qat_lib.errors import StepError
from qatline.components.artifacts import Evaluation, Promotion
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.artifacts.evaluation import (
    METRIC_TAG,
    ResultRow,
    primary_metric,
    row_metrics,
)
from qatline.components.artifacts.promotion import describe_verdict
from qatline.components.settings import Settings
from qatline.components.step_table import STEP_BY_NAME, TrackedOutputs
from qatline.components.store.directories import Manifest
from qatline.components.store.fingerprints import library_versions
from qatline.components.tracking.mlflow_run import (
    Artifact,
    Curves,
    DatasetInput,
    Metrics,
    OnnxModel,
    Params,
    Tags,
)
from qatline.components.tracking.tracker import StepTracker

MAX_PARAM = 500
DESCRIPTION_TAG = "mlflow.note.content"
"""Tag displayed by MLflow's UI as the description of a run."""

KEY_TAG = "qatline.key"
"""Tag of a step's run: the key of its result in the step store."""


def log_settings(
    tracker: StepTracker, sections: Mapping[str, Settings], *, seed: int, key: str
) -> None:
    """Record settings and seed as flat params, metadata as tags.

    The tags contain the key, versions and git state. The settings are recorded in the pipeline's
    run as well: on a cluster no single process has all of them.
    """
    params: dict[str, Any] = {}
    for name, section in sections.items():
        params.update(flatten(section.model_dump(mode="json"), name))
    tracker.record(Params({"run.seed": seed, **params}))
    tracker.record_pipeline(Params({"seed": seed, **params}))
    tracker.record(Tags({KEY_TAG: key, **environment_tags()}))


def log_outputs(tracker: StepTracker, step: str, directory: Path, manifest: Manifest) -> None:
    """Record a finished output directory's metrics and files, as declared by the step table.

    Raises:
        StepError: a JSON file is malformed.
        TrackingError: the store refuses.
    """
    outputs = STEP_BY_NAME[step].tracked
    measured = _rows(directory, outputs)
    rows = row_metrics(measured)
    tracker.record(Metrics({**_without_rows(manifest.metrics, rows), **rows}))
    tracker.record(Tags({"qatline.output_digest": manifest.digest}))
    for path in _matches(directory, outputs.history):
        epochs = _read_json(path)
        tracker.record(Curves(epochs))
        tracker.record_pipeline(Curves(epochs, step))
    for path in _matches(directory, outputs.dataset):
        dataset = DatasetInput(DatasetInfo.load(path.parent))
        tracker.record(dataset)
        tracker.record_pipeline(dataset)
    if rows:
        tracker.record_pipeline(Metrics(rows))
        tracker.record_pipeline(Tags({METRIC_TAG: primary_metric(measured).model_dump_json()}))
    for _ in _matches(directory, outputs.verdict):
        verdict = Promotion(directory).verdict()
        tags = {"qatline.verdict": verdict.verdict, DESCRIPTION_TAG: describe_verdict(verdict)}
        tracker.record_pipeline(Tags(tags))
    for path in _matches(directory, outputs.summary):
        tracker.record_pipeline(Artifact(path))
    for pattern, names in outputs.tags.items():
        for path in _matches(directory, (pattern,)):
            named = _named(_read_json(path), names)
            tracker.record(Tags({f"{path.stem}.{name}": text for name, text in named.items()}))
    for path in _matches(directory, outputs.artifacts):
        folder = path.parent.relative_to(directory).as_posix()
        tracker.record(Artifact(path, "" if folder == "." else folder))
    for path in _matches(directory, outputs.onnx):
        tracker.record(OnnxModel(path))


def _rows(directory: Path, outputs: TrackedOutputs) -> dict[str, ResultRow]:
    """Return the measured rows; their metrics have names such as ``qat_engine/throughput``."""
    rows: dict[str, ResultRow] = {}
    for _ in _matches(directory, outputs.rows):
        rows.update(Evaluation(directory).measurements().rows)
    return rows


def _without_rows(metrics: Mapping[str, float], rows: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without those of the rows, spelled with underscores for Kubeflow."""
    spelled = {name.replace("/", "_") for name in rows}
    return {name: value for name, value in metrics.items() if name not in spelled}


def flatten(value: Any, prefix: str) -> dict[str, Any]:
    """Return nested mappings as ``{"prefix.key.key": scalar}``; lists become compact JSON.

    Texts beyond 500 characters end in "...": the store would truncate them, and an artifact
    contains the full text.
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
    """Return a git command's output, or an empty string without git or a repository."""
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
    """Return a JSON object's values below the keys, flattened to text, without nulls."""
    chosen = (
        {name: value[name] for name in names if name in value} if isinstance(value, Mapping) else {}
    )
    items = flatten(chosen, "").items()
    return {name.removeprefix("."): str(item) for name, item in items if item is not None}
