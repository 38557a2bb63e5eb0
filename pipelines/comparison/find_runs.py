"""Selection of the runs to compare, and their location in MLflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qat_lib.errors import ConfigError, MissingPackageError
from qat_lib.support.extras import install_hint, missing_packages
from qatline.components.settings import TrackingSettings
from qatline.components.support.credentials import scrub
from qatline.components.tracking.database import database_path, has_content
from qatline.components.tracking.pipeline_run import RUN_TAG
from qatline.components.tracking.store import open_client, translated
from qatline.components.tracking.tracker import URI_VARIABLE
from qatline.pipelines.comparison.tracked_runs import TrackedRun, read_tracked_run
from qatline.pipelines.run.folder import RunFolder, run_folders
from qatline.pipelines.run.record import read_tracking
from qatline.pipelines.run.tracking import default_uri

LATEST = 5
"""Number of runs to compare by default."""

_LOOKED_AT = 1000


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """Selection of runs to compare.

    Attributes:
        names: folders, ids of run folders, of pipeline runs on a cluster or of MLflow, or names of
            MLflow runs; empty for the latest five.
        output: folder of the runs on this machine.
        experiment: MLflow experiment; None for that of the runs in ``output``, else ``qatline``.
        uri: MLflow store; None for that of the runs in ``output``, else ``MLFLOW_TRACKING_URI``,
            else the SQLite file in ``output``.
    """

    names: Sequence[str] = ()
    output: Path = Path("runs")
    experiment: str | None = None
    uri: str | None = None


def find_runs(choice: RunChoice, *, details: bool = False) -> list[TrackedRun]:
    """Return the selected runs in their order; the latest ones from old to new.

    Args:
        choice: the selection.
        details: whether to read curves and plans.

    Raises:
        ConfigError: a run does not exist or was not tracked.
        TrackingError: a store cannot be read.
    """
    clients: dict[str, Any] = {}

    def client_of(uri: str) -> Any:
        if uri not in clients:
            clients[uri] = _reader(uri, choice.output)
        return clients[uri]

    runs = []
    for uri, run_id, label in _places(choice, client_of):
        runs.append(read_tracked_run(client_of(uri), run_id, name=label, details=details))
    return runs


# Store, MLflow run, label; an empty label selects the run's name.
_Place = tuple[str, str, str]


def _places(choice: RunChoice, client_of: Callable[[str], Any]) -> Iterator[_Place]:
    if not choice.names:
        yield from _latest(choice, client_of)
    for name in choice.names:
        yield _named(choice, name, client_of)


def _named(choice: RunChoice, name: str, client_of: Callable[[str], Any]) -> _Place:
    folder = _folder(choice.output, name)
    # A run folder records its store; an explicit store or experiment takes precedence.
    if folder is not None and choice.experiment is None and choice.uri is None:
        if not folder.tracking_file.exists():
            raise ConfigError(
                f"Run {folder.run_id} has no record in MLflow: it was not tracked, or ended too "
                "early."
            )
        tracking = read_tracking(folder.tracking_file)
        return tracking.uri, tracking.run_id, folder.run_id
    uri = _store(choice)
    runs = _pipeline_runs(client_of(uri), _experiment(choice))
    for run in runs:
        if name in (run.info.run_id, run.info.run_name, run.data.tags.get(RUN_TAG)):
            return uri, run.info.run_id, ""
    listed = ", ".join(run.info.run_name for run in runs[:LATEST]) or "none"
    raise ConfigError(
        f"Expected a run of {choice.output} or of the experiment {_experiment(choice)!r} in "
        f"{scrub(uri)}, received {name!r}. The experiment's latest runs: {listed}."
    )


def _latest(choice: RunChoice, client_of: Callable[[str], Any]) -> Iterator[_Place]:
    folders = _tracked_folders(choice.output)
    if folders and choice.experiment is None and choice.uri is None:
        for folder in folders[-LATEST:]:
            tracking = read_tracking(folder.tracking_file)
            yield tracking.uri, tracking.run_id, folder.run_id
        return
    uri = _store(choice)
    runs = _pipeline_runs(client_of(uri), _experiment(choice))[:LATEST]
    if not runs:
        raise ConfigError(
            f"Expected runs in the experiment {_experiment(choice)!r} of {scrub(uri)}; there are "
            "none. Name another one with --experiment or --tracking-uri."
        )
    for run in reversed(runs):
        yield uri, run.info.run_id, ""


def _pipeline_runs(client: Any, experiment: str) -> list[Any]:
    """Return the experiment's runs of whole pipelines, newest first."""
    with translated(f"the runs of {experiment!r} can't be read from {scrub(client.tracking_uri)}"):
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return []
        runs = client.search_runs(
            [found.experiment_id],
            order_by=["attributes.start_time DESC"],
            max_results=_LOOKED_AT,
        )
    return list(filter(_is_whole, runs))


def _is_whole(run: Any) -> bool:
    tags = run.data.tags
    if "mlflow.parentRunId" in tags or "qatline.step" in tags:
        return False
    return any(tag.startswith("qatline.") for tag in tags)


def _reader(uri: str, output: Path) -> Any:
    if missing_packages(["mlflow"]):
        raise MissingPackageError(
            f"Comparing runs needs the package mlflow. {install_hint(['mlflow'])}"
        )
    path = database_path(uri)
    if path is not None and not has_content(path):  # opening it would create it
        raise ConfigError(f"Expected tracked runs in {output}; there are none.")
    return open_client(uri)


def _store(choice: RunChoice) -> str:
    folders = _tracked_folders(choice.output)
    tracking = read_tracking(folders[-1].tracking_file) if folders else None
    recorded = tracking.uri if tracking is not None else None
    return choice.uri or recorded or os.environ.get(URI_VARIABLE) or default_uri(choice.output)


def _experiment(choice: RunChoice) -> str:
    return choice.experiment or TrackingSettings().experiment


def _folder(output: Path, name: str) -> RunFolder | None:
    for folder in run_folders(output):
        if folder.run_id == name:
            return folder
    path = Path(name)
    return RunFolder(path=path.absolute()) if (path / "run.json").is_file() else None


def _tracked_folders(output: Path) -> list[RunFolder]:
    return [folder for folder in run_folders(output) if folder.tracking_file.exists()]
