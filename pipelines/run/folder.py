"""A run's folder: contents, lock, and the run to resume.

<output>/<run_id>/
    config.yaml         the whole config, every default written out
    run.json            status and where the run came from (RunRecord)
    events.jsonl        what the steps report while they run
    tracking.json       the MLflow run (written by the launcher)
    result.json         written last: a run that has it is finished
    logs/pipeline.log   everything the launcher and the steps print
    steps/<attempt>/    the output artifacts of each attempt, as KFP lays them out
    artifacts/          one link per step to its output in the attempt that finished
    report.html
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from qat_lib.errors import ConfigError, StorageError
from qat_lib.files.whole_files import sweep_unfinished, write_text
from qatline.components.store.work_directory import work_directory
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

# Seconds; the launcher of a parent that was killed needs a moment to follow it.
_LOCK_PATIENCE = 2.0


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The paths of one run."""

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

    def store_dir(self, *, shared: bool) -> Path:
        """Return the shared step store, or the run's own with ``--no-cache``."""
        return (self.path.parent if shared else self.path) / "store"

    def config(self) -> RunConfig:
        """Read the stored config back."""
        return build_config(read_yaml_mapping(self.config_file), source=str(self.config_file))

    def check_same_config(self, config: RunConfig) -> None:
        """Check that a config matches the one that started this run.

        Raises:
            ConfigError: It differs; the first key that does is named.
        """
        stored, given = flatten_config(self.config().to_dict()), flatten_config(config.to_dict())
        for key, value in stored.items():
            if key != "output" and not key.startswith("cluster.") and given.get(key) != value:
                raise ConfigError(
                    f"Run {self.run_id} was started with {key}={value!r}, received "
                    f"{given.get(key)!r}. Resume it with its own config, or start a new run, "
                    "which reuses what has not changed."
                )

    def record(self) -> RunRecord:
        """Read ``run.json``.

        Raises:
            StorageError: The file is missing or is not what this version writes.
        """
        try:
            return RunRecord(**read_record(self.record_file))
        except TypeError as error:
            raise StorageError(
                f"{self.record_file} is of another version of qatline: {error}"
            ) from error

    def settle(self) -> RunRecord:
        """Read ``run.json``.

        A run that is said to be running and whose process is gone becomes an interrupted one.

        Raises:
            StorageError: The file is missing or is not what this version writes.
        """
        record = self.record()
        if record.status != "running":
            return record
        try:
            with self.hold(0.0):
                record = self.record()
                if record.status == "running":
                    record = replace(record, status="interrupted", ended=self._last_sign())
                    self.write_record(record)
        except (StorageError, OSError):  # it is running indeed, or this folder is not ours to write
            return record
        return record

    def _last_sign(self) -> str:
        """Return when the run last told anything."""
        known = self.events_file if self.events_file.exists() else self.record_file
        return timestamp(known.stat().st_mtime)

    def write_record(self, record: RunRecord) -> None:
        """Write ``run.json``, whole or not at all."""
        write_json(self.record_file, asdict(record))

    def finish(self, status: Status) -> None:
        """Note how the run ended."""
        self.write_record(replace(self.record(), status=status, ended=now()))

    @contextmanager
    def hold(self, patience: float = _LOCK_PATIENCE) -> Iterator[int]:
        """Hold the folder against other processes; yield the lock's file descriptor.

        The operating system drops the lock when the last process that has the descriptor ends,
        however it ends.

        Raises:
            StorageError: Another process holds it.
        """
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire(descriptor, time.monotonic() + patience)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            for place in (self.path, self.artifacts_dir, *self.steps_dir.glob("*/*/*")):
                sweep_unfinished(place)
            yield descriptor
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    holder = (
                        os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
                    )
                    raise StorageError(
                        f"The run folder {self.path} is held by another process (pid {holder}). "
                        "Wait until that run has ended, or start another one."
                    ) from error
                time.sleep(0.1)


def create_run(config: RunConfig, *, pipeline: str, cache: bool, version: str) -> RunFolder:
    """Make a new run folder under ``config.output``.

    Raises:
        StorageError: The folder can't be written.
    """
    run_id = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    output = Path(config.output).absolute()
    work = work_directory(output, run_id)
    unfinished = RunFolder(path=work)
    try:
        unfinished.log_file.parent.mkdir()
        write_text(
            unfinished.config_file,
            yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True),
        )
        unfinished.write_record(
            RunRecord(run_id=run_id, pipeline=pipeline, cache=cache, version=version)
        )
        return RunFolder(path=work.rename(output / run_id))
    except OSError as error:
        raise as_storage_error(error, output / run_id) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_folders(output: Path) -> list[RunFolder]:
    """Return the runs in a folder, the oldest first."""
    # A hidden folder is one that is being made.
    records = sorted(output.absolute().glob("[!.]*/run.json"))
    return [RunFolder(path=path.parent) for path in records]


def find_run(output: Path, run_id: str | None) -> RunFolder:
    """Return the named run, or the latest unfinished one, to resume.

    Args:
        output: The folder of the runs.
        run_id: A run's name in ``output``, or the path of its folder; None for the latest
            unfinished.

    Raises:
        ConfigError: There is no such run.
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
    """Return the named run, or the latest one whatever became of it.

    Raises:
        ConfigError: There is no such run.
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
    """Return a config's values by their path, such as ``training.epochs``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(
            flatten_config(value, f"{prefix}{key}.")
            if isinstance(value, dict) and value
            else {prefix + key: value}
        )
    return flat
