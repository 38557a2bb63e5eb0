"""A run's folder: contents, lock, and the run to resume.

<output>/<run_id>/
    config.yaml         the complete config, including defaults
    run.json            status and origin of the run (RunRecord)
    events.jsonl        events of the running steps
    tracking.json       the MLflow run (written by the launcher)
    result.json         written last: its presence marks a finished run
    logs/pipeline.log   output of the launcher and the steps
    steps/<attempt>/    output artifacts of each attempt, in KFP's layout
    artifacts/          one link per step to its output in the last attempt
    report.html
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import ConfigError, StorageError
from qat_lib.files.whole_files import folder_beside, sweep_unfinished, write_text
from qat_lib.support.locks import LockTimeoutError, file_lock
from qatline.components.support.disk_errors import as_storage_error
from qatline.pipelines.config.run_config import RunConfig, build_config
from qatline.pipelines.config.yaml_files import read_yaml_mapping
from qatline.pipelines.run.record import (
    RunRecord,
    Status,
    now,
    read_record,
    timestamp,
    write_json,
)

# Seconds; the launcher of a killed parent needs a moment to exit.
_LOCK_PATIENCE = 2.0


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Paths of a run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def record_file(self) -> Path:
        return self.path / "run.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def tracking_file(self) -> Path:
        return self.path / "tracking.json"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def log_file(self) -> Path:
        return self.path / "logs" / "pipeline.log"

    @property
    def steps_dir(self) -> Path:
        return self.path / "steps"

    def attempt_dir(self, attempt: int) -> Path:
        """Return the step output folder of one attempt, counted from 1."""
        return self.steps_dir / f"{attempt:03d}"

    @property
    def artifacts_dir(self) -> Path:
        return self.path / "artifacts"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def report(self) -> Path:
        """Return the absolute path of the report.

        Raises:
            StorageError: the run has none yet.
        """
        if not self.report_file.exists():
            raise StorageError(
                f"Run {self.run_id} has no report: its last step, promote, has not finished. "
                f"Resume it with: qatline resume {self.run_id}"
            )
        return self.report_file.absolute()

    def store_dir(self, *, shared: bool) -> Path:
        """Return the shared step store, or the run's private one with ``--no-cache``."""
        return (self.path.parent if shared else self.path) / "store"

    def config(self) -> RunConfig:
        """Read the stored config."""
        return build_config(read_yaml_mapping(self.config_file), source=str(self.config_file))

    def check_same_config(self, config: RunConfig) -> None:
        """Check that a config equals the stored one, except for output and cluster.

        Raises:
            ConfigError: it differs; the message names the first differing key.
        """
        stored, given = flatten_config(self.config().to_dict()), flatten_config(config.to_dict())
        for key, value in stored.items():
            if key != "output" and not key.startswith("cluster.") and given.get(key) != value:
                raise ConfigError(
                    f"Run {self.run_id} was started with {key}={value!r}, received "
                    f"{given.get(key)!r}. Resume it with its own config, or start a new run, "
                    "which reuses unchanged steps."
                )

    def record(self) -> RunRecord:
        """Read ``run.json``.

        Raises:
            StorageError: the file is missing or has another format.
        """
        try:
            return RunRecord(**read_record(self.record_file))
        except TypeError as error:
            raise StorageError(
                f"{self.record_file} is of another version of qatline: {error}"
            ) from error

    def settle(self) -> RunRecord:
        """Read ``run.json``; mark a running run without a process as interrupted.

        Raises:
            StorageError: the file is missing or has another format.
        """
        record = self.record()
        if record.status != "running":
            return record
        try:
            # A free lock means that no process runs this folder. Read the record again under the
            # lock: the run may have ended since.
            with self.hold(0.0):
                record = self.record()
                if record.status == "running":
                    record = replace(record, status="interrupted", ended=self._last_sign())
                    self.write_record(record)
        except (StorageError, OSError):  # still running, or a read-only folder
            return record
        return record

    def _last_sign(self) -> str:
        """Return the time of the run's last event."""
        known = self.events_file if self.events_file.exists() else self.record_file
        return timestamp(known.stat().st_mtime)

    def write_record(self, record: RunRecord) -> None:
        """Write ``run.json`` atomically."""
        write_json(self.record_file, asdict(record))

    def finish(self, status: Status) -> None:
        """Record the final status of the run."""
        self.write_record(replace(self.record(), status=status, ended=now()))

    @contextmanager
    def hold(self, patience: float = _LOCK_PATIENCE) -> Iterator[tuple[int, ...]]:
        """Hold the folder's lock; yield its descriptor for a child process (see ``file_lock``).

        Raises:
            StorageError: another process holds the lock.
        """
        lock = self.path / ".lock"
        try:
            with file_lock(lock, owner=str(os.getpid()), patience=patience) as descriptor:
                for place in (self.path, self.artifacts_dir, *self.steps_dir.glob("*/*/*")):
                    sweep_unfinished(place, alone=True)
                yield descriptor
        except LockTimeoutError as error:
            raise StorageError(
                f"The run folder {self.path} is in use by another process (pid "
                f"{error.holder or 'unknown'}). Wait until that run has ended, or start another "
                "one."
            ) from error


def create_run(config: RunConfig, *, pipeline: str, cache: bool, version: str) -> RunFolder:
    """Create a new run folder under ``config.output``.

    Raises:
        StorageError: the folder is not writable.
    """
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    output = Path(config.output).absolute()
    try:
        with folder_beside(output / run_id) as work:
            unfinished = RunFolder(path=work)
            unfinished.log_file.parent.mkdir()
            write_text(
                unfinished.config_file,
                yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True),
            )
            unfinished.write_record(
                RunRecord(run_id=run_id, pipeline=pipeline, cache=cache, version=version)
            )
            # The folder appears complete: other processes never see a run without its record.
            return RunFolder(path=work.rename(output / run_id))
    except OSError as error:
        raise as_storage_error(error, output / run_id) from error


def run_folders(output: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first."""
    # Hidden folders are under construction.
    records = sorted(output.absolute().glob("[!.]*/run.json"))
    return [RunFolder(path=path.parent) for path in records]


def find_run(output: Path, run_id: str | None) -> RunFolder:
    """Return the named run, or the latest unfinished run.

    Args:
        output: folder of the runs.
        run_id: name of a run in ``output``, or the path of its folder; None for the latest
            unfinished run.

    Raises:
        ConfigError: the run does not exist.
    """
    runs = run_folders(output)
    if run_id is not None:
        return _named_run(runs, output, run_id)
    created = {
        run.path: record.created for run in runs if (record := run.settle()).status != "finished"
    }
    if not created:
        raise ConfigError(f"Expected an unfinished run in {output}; there is none to resume.")
    return RunFolder(path=max(created, key=created.__getitem__))


def find_or_latest(output: Path, run_id: str | None) -> RunFolder:
    """Return the named run, or the latest run of any status.

    Raises:
        ConfigError: the run does not exist.
    """
    if run_id is not None:
        return find_run(output, run_id)
    runs = run_folders(output)
    if not runs:
        raise ConfigError(f"Expected a run in {output}; there is none.")
    return runs[-1]


def _named_run(runs: Sequence[RunFolder], output: Path, run_id: str) -> RunFolder:
    for run in runs:
        if run.run_id == run_id:
            return run
    if (Path(run_id) / "run.json").is_file():
        return RunFolder(path=Path(run_id).absolute())
    listed = ", ".join(run.run_id for run in runs[-5:]) or "none"
    raise ConfigError(
        f"Expected a run of {output}, received {run_id!r}. Its latest runs: {listed}."
    )


def flatten_config(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config's values by path, such as ``training.epochs``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(
            flatten_config(value, f"{prefix}{key}.")
            if isinstance(value, dict) and value
            else {prefix + key: value}
        )
    return flat
