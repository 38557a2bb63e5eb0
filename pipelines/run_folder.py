"""One run's folder: what is in it, who holds it, and which run to resume.

<output>/<run_id>/
    config.yaml         the whole config, every default written out
    run.json            status and where the run came from (RunRecord)
    events.jsonl        what the steps report while they run
    tracking.json       the MLflow run (written by the launcher)
    result.json         written last: a run that has it is finished
    logs/pipeline.log   everything the launcher and the steps print
    steps/              the output artifacts, as KFP lays them out
    artifacts/          one link per step to its output
    report.html
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import yaml

from pipelines.config import RunConfig, build_config
from pipelines.yaml_config import read_yaml_mapping
from qat_lib import text_files
from qat_lib.errors import ConfigError, StorageError
from qat_lib.output_files import check_target

Status = Literal["running", "finished", "failed", "interrupted"]

_LOCK_PATIENCE = 2.0  # seconds; the launcher of a parent that was killed needs a moment to follow it


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What ``run.json`` says about a run."""

    run_id: str
    pipeline: str
    cache: bool = True
    status: Status = "running"
    created: str = field(default_factory=lambda: _now())
    ended: str | None = None
    attempts: int = 1
    version: str = ""


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

    @property
    def artifacts_dir(self) -> Path:
        return self.path / "artifacts"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    def store_dir(self, *, shared: bool) -> Path:
        """Return the step store: the one beside the runs, or this run's own (``--no-cache``)."""
        return (self.path.parent if shared else self.path) / "store"

    def config(self) -> RunConfig:
        """Read the stored config back."""
        return build_config(read_yaml_mapping(self.config_file), source=str(self.config_file))

    def check_same_config(self, config: RunConfig) -> None:
        """Check that a config is the one that this run was started with.

        Raises:
            ConfigError: It differs; the first key that does is named.
        """
        stored, given = _flat(self.config().to_dict()), _flat(config.to_dict())
        for key, value in stored.items():
            if key != "output" and not key.startswith("cluster.") and given.get(key) != value:
                raise ConfigError(
                    f"Run {self.run_id} was started with {key}={value!r}, received {given.get(key)!r}. "
                    "Resume it with its own config, or start a new run, which reuses what has not changed."
                )

    def record(self) -> RunRecord:
        """Read ``run.json``.

        Raises:
            StorageError: The file is missing or is not what this version writes.
        """
        try:
            return RunRecord(**read_json(self.record_file))
        except TypeError as error:
            raise StorageError(f"{self.record_file} is of another version of qatline: {error}") from error

    def write_record(self, record: RunRecord) -> None:
        """Write ``run.json``, whole or not at all."""
        write_json(self.record_file, asdict(record))

    def finish(self, status: Status) -> None:
        """Note how the run ended."""
        self.write_record(replace(self.record(), status=status, ended=_now()))

    @contextmanager
    def hold(self, patience: float = _LOCK_PATIENCE) -> Iterator[int]:
        """Hold the folder against other processes; yield the lock's file descriptor.

        The operating system drops the lock when the last process that has the descriptor ends, however it ends.

        Raises:
            StorageError: Another process holds it.
        """
        descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._acquire(descriptor, time.monotonic() + patience)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
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
                    holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
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
    folder = RunFolder(path=Path(config.output).absolute() / run_id)
    try:
        folder.log_file.parent.mkdir(parents=True)
        write_text(folder.config_file, yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True))
        folder.write_record(RunRecord(run_id=run_id, pipeline=pipeline, cache=cache, version=version))
    except OSError as error:
        raise StorageError(f"Could not write the run folder {folder.path}: {error}. Check 'output'.") from error
    return folder


def find_run(output: Path, run_id: str | None) -> RunFolder:
    """Return the run to resume: the named one, or the latest unfinished one.

    Args:
        output: The folder of the runs.
        run_id: A run's name in ``output``, or the path of its folder; None for the latest unfinished.

    Raises:
        ConfigError: There is no such run.
    """
    runs = [RunFolder(path=path.parent) for path in sorted(output.absolute().glob("*/run.json"))]
    if run_id is not None:
        named = [run for run in runs if run.run_id == run_id]
        if not named and (Path(run_id) / "run.json").is_file():
            named = [RunFolder(path=Path(run_id).absolute())]
        if not named:
            listed = ", ".join(run.run_id for run in runs[-5:]) or "none"
            raise ConfigError(f"Expected a run of {output}, received {run_id!r}. Its latest runs: {listed}.")
        return named[0]
    unfinished = [run for run in runs if run.record().status != "finished"]
    if not unfinished:
        raise ConfigError(f"Expected an unfinished run in {output}; there is none to resume.")
    return max(unfinished, key=lambda run: run.record().created)


def write_text(path: Path, text: str) -> None:
    """Write a file beside its place, then rename it: a reader sees all of it or nothing.

    Raises:
        OSError: It can't be written there, or something else than a file is there.
    """
    check_target(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that ``write_json`` wrote.

    Raises:
        StorageError: The file is missing or holds something else.
    """
    content = text_files.read_json(path, what="a run's record", error=StorageError)
    if not isinstance(content, dict):
        raise StorageError(f"Expected a JSON object in {path}, received {type(content).__name__}.")
    return content


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value})
    return flat


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
