"""JSON files of a run's folder, with atomic writes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from qat_lib.errors import StorageError
from qat_lib.files import text_files
from qat_lib.files.whole_files import write_text
from qatline.components.artifacts.record import Record

Status = Literal["running", "finished", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Content of ``run.json``."""

    run_id: str
    pipeline: str
    cache: bool = True
    status: Status = "running"
    created: str = field(default_factory=lambda: now())
    ended: str | None = None
    attempts: int = 1
    version: str = ""


class TrackingRecord(Record):
    """Content of ``tracking.json``: location of the run in MLflow."""

    uri: str = ""
    experiment_id: str = ""
    run_id: str = ""


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON object written by ``write_json``.

    Raises:
        StorageError: the file is missing or has another format.
    """
    content = text_files.read_json(path, what="a run's record", error=StorageError)
    if not isinstance(content, dict):
        raise StorageError(f"Expected a JSON object in {path}, received {type(content).__name__}.")
    return content


def read_tracking(path: Path) -> TrackingRecord:
    """Read the location of a run in MLflow.

    Raises:
        StorageError: the file is missing or has another format.
    """
    content = read_record(path)
    try:
        return TrackingRecord.model_validate(content)
    except ValueError as error:
        raise StorageError(f"{path} is of another version of qatline: {error}") from error


def now() -> str:
    """Return the current time as ISO 8601 text in UTC."""
    return timestamp(time.time())


def timestamp(seconds: float) -> str:
    """Return an epoch time in seconds as ISO 8601 text in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
