"""Removal of runs and cached results from a folder of runs."""

from __future__ import annotations

import os
import shutil
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from qat_lib.errors import ConfigError, QatlineError, StorageError
from qatline.components.registry.registry import CHAMPION, PREVIOUS, RUN
from qatline.components.store.manifest import read_step_manifest
from qatline.components.store.step_store import StepStore
from qatline.components.support.disk_errors import as_storage_error
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.overview import RunSummary, list_runs
from qatline.pipelines.run.registered import named_registry

STATUSES = ("finished", "failed", "interrupted", "damaged")
# Suffix of a folder under removal; a killed removal is completed by the next one.
_REMOVED = ".removed"

Inode = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Runs and cached results to remove.

    Attributes:
        runs: the runs, oldest first.
        results: folders of the step store without a remaining run.
        kept: reason for keeping each other selected run.
        freed: bytes that the removal frees; files shared with a remaining run do not count.
    """

    runs: Sequence[RunSummary]
    results: Sequence[Path]
    kept: Mapping[str, str] = field(default_factory=dict)
    freed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "runs": [run.run_id for run in self.runs],
            "results": [f"{path.parent.name}/{path.name}" for path in self.results],
            "kept": dict(self.kept),
            "freed_bytes": self.freed,
        }


def plan_removal(
    output: Path,
    *,
    seconds: float | None = None,
    statuses: Iterable[str] = (),
    most_bytes: int | None = None,
) -> Removal:
    """Return the runs to remove, and the cached results without a remaining run.

    Runs in progress are kept, and runs that made a champion or its predecessor. Cached results are
    kept during any run, because its next step may use them.

    Args:
        output: folder of the runs.
        seconds: least age of a run since its start; None for any age.
        statuses: statuses of the runs; none for any status.
        most_bytes: size of runs and cached results to reach: of the runs that match otherwise, the
            oldest are removed, as few as possible. None for all of them.

    Raises:
        ConfigError: no criterion is given, or a status is unknown.
    """
    statuses = frozenset(statuses)
    if unknown := sorted(statuses.difference(STATUSES)):
        raise ConfigError(
            f"Expected a status out of {', '.join(STATUSES)}, received {unknown[0]!r}."
        )
    if seconds is None and not statuses and most_bytes is None:
        raise ConfigError(
            "Expected an age, a status or a size that selects runs, received none. For example: "
            "--older-than 30d."
        )
    listed = list_runs(output)
    matching = [
        run
        for run in listed
        if (not statuses or run.status in statuses)
        and (seconds is None or time.time() - _started(run) >= seconds)
    ]
    kept = {run.run_id: "it is running" for run in matching if run.status == "running"}
    kept |= _champions(output, [run for run in matching if run.run_id not in kept])
    removable = [run for run in matching if run.run_id not in kept]
    is_idle = _is_idle(listed)

    def removal(count: int) -> Removal:
        chosen = removable[:count]
        paths = {run.path for run in chosen}
        rest = [run for run in listed if run.path not in paths]
        results = _unused_results(output, rest) if is_idle else []
        return Removal(runs=chosen, results=results, kept=kept, freed=_freed([*paths, *results]))

    if most_bytes is None:
        return removal(len(removable))
    # Without MLflow's artifacts in the same folder, which no removal makes smaller.
    places = [*(Path(run.path) for run in listed), output / "store"]
    size = sum(entry.st_size for entry in _files(places).values())
    count = bisect_left(
        range(len(removable)), True, key=lambda count: size - removal(count).freed <= most_bytes
    )
    return removal(count)


def remove(removal: Removal, output: Path) -> None:
    """Remove runs and results. Each one disappears at once, even if the removal is killed.

    Args:
        removal: the plan.
        output: folder of the runs.

    Raises:
        StorageError: a run was started or resumed meanwhile, or a folder cannot be removed.
    """
    try:
        # Leftovers of a killed removal, renamed but not yet removed.
        for left in [*output.glob(f".*{_REMOVED}"), *output.glob(f"store/*/.*{_REMOVED}")]:
            shutil.rmtree(left)
        for run in removal.runs:
            folder = RunFolder(path=Path(run.path))
            with folder.hold(0.0):
                _remove_folder(folder.path)
        # Checked again after the plan: a new run may use a result without a lock.
        if removal.results and not _is_idle(list_runs(output)):
            raise StorageError(
                f"A run was started in {output}; its steps may use the cached results. Repeat the "
                "command after the run."
            )
        store = StepStore(output / "store")
        for path in removal.results:
            with store.hold(path.parent.name, path.name, lambda _: None):
                _remove_folder(path)
    except OSError as error:
        raise as_storage_error(error, output) from error


def _is_idle(runs: Iterable[RunSummary]) -> bool:
    return all(run.status != "running" for run in runs)


def _remove_folder(path: Path) -> None:
    hidden = path.with_name(f".{path.name}{_REMOVED}")
    path.rename(hidden)
    shutil.rmtree(hidden)


def _started(run: RunSummary) -> float:
    """Return the start of a run in seconds since 1970; of a damaged one, its last change."""
    try:
        return datetime.fromisoformat(run.created or "").timestamp()
    except ValueError:
        return Path(run.path).stat().st_mtime


def _champions(output: Path, runs: Iterable[RunSummary]) -> dict[str, str]:
    """Return the reason to keep each run of a champion or its predecessor.

    If its config or registry cannot be read, a run with a verdict is kept.
    """
    kept: dict[str, str] = {}
    champions: dict[str, Mapping[str, str] | QatlineError] = {}
    for run in runs:
        if not Path(run.path, "artifacts", "promotion").exists():
            continue
        try:
            config = RunFolder(path=Path(run.path)).config()
        except QatlineError as error:
            kept[run.run_id] = f"its config can't be read: {error}"
            continue
        if config.registry.name is None:
            continue
        here = config.model_copy(update={"output": str(output)})
        place = f"{here.tracking.uri} {config.registry.name}"
        # One query per registry, not per run.
        if place not in champions:
            champions[place] = _runs_in_use(here)
        found = champions[place]
        if isinstance(found, QatlineError):
            kept[run.run_id] = f"its registry can't be read: {found}"
        elif run.run_id in found:
            kept[run.run_id] = found[run.run_id]
    return kept


def _runs_in_use(config: Any) -> Mapping[str, str] | QatlineError:
    before = os.environ.copy()
    try:
        registry = named_registry(config)
        aliases = registry.state().aliases
        by_number = {version.number: version.tags.get(RUN) for version in registry.versions()}
    except QatlineError as error:
        return error
    finally:
        # The registry's variables would redirect the runs of other stores.
        os.environ.clear()
        os.environ.update(before)
    roles = {PREVIOUS: f"it made the predecessor of the champion of {registry.name!r}"}
    roles[CHAMPION] = f"it made the champion of {registry.name!r}"
    return {by_number[aliases[a]] or "": text for a, text in roles.items() if a in aliases}


def _unused_results(output: Path, runs: Iterable[RunSummary]) -> list[Path]:
    """Return the results of the step store that occur in none of the runs."""
    used = set()
    for run in runs:
        for manifest in Path(run.path).glob("steps/*/*/*/*/manifest.json"):
            try:
                found = read_step_manifest(manifest.parent)
            except StorageError:  # an unfinished step
                continue
            used.add((found.step, found.key))
    results = sorted(output.glob("store/*/[!.]*"))
    return [path for path in results if (path.parent.name, path.name) not in used]


def _freed(paths: Iterable[Path | str]) -> int:
    """Return the bytes that the removal of folders frees."""
    counts: dict[Inode, int] = {}
    files = _files(paths, counts)
    return sum(each.st_size for key, each in files.items() if counts[key] == each.st_nlink)


def _files(
    paths: Iterable[Path | str], counts: dict[Inode, int] | None = None
) -> dict[Inode, os.stat_result]:
    """Return the status of each file in folders; count the names of each in ``counts``."""
    found = {}
    for path in paths:
        for root, _, names in os.walk(path):
            for name in names:
                status = os.lstat(os.path.join(root, name))
                key = (status.st_dev, status.st_ino)
                found[key] = status
                if counts is not None:
                    counts[key] = counts.get(key, 0) + 1
    return found
