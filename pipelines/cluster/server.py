"""Submission of runs and schedules to a Kubeflow Pipelines server.

Schedules are created or updated by name. The server contains a pipeline ``qatline`` with one
version per content: equal code and config give the same version, uploaded once. The server cannot
change a schedule in place; ``apply_schedule`` compares it and replaces it only if it differs.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from qat_lib.errors import ConfigError
from qatline.pipelines.cluster.compile import pipeline_ir
from qatline.pipelines.cluster.connection import ClusterError, client_errors, open_kfp_client
from qatline.pipelines.cluster.progress import ClusterRun, describe_run, follow_run
from qatline.pipelines.cluster.schedule import (
    Schedule,
    ScheduleDetails,
    ScheduledRun,
    is_same,
    schedule_of,
    version_id,
)
from qatline.pipelines.config.run_config import RunConfig

__all__ = ["Cluster", "ClusterError", "Schedule", "Submitted", "connect"]

PIPELINE = "qatline"
_PAGE = 100
_LATEST_RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run accepted by the server."""

    run_id: str
    url: str


class Cluster:
    """A Kubeflow Pipelines server.

    Args:
        client: a ``kfp.Client``.
        host: address of the server, for links and messages.
        namespace: namespace of experiments and schedules; empty on a single-user server.
    """

    def __init__(self, client: Any, host: str, namespace: str = "") -> None:
        self._client = client
        self._host = host.rstrip("/")
        self._namespace = namespace or None

    def submit(
        self, config: RunConfig, *, experiment: str, name: str, caching: bool = True
    ) -> Submitted:
        """Start one run.

        Raises:
            ConfigError: the cluster section does not fit the engine's backend.
            ClusterError: the server cannot be reached or refuses.
        """
        with self._told("start the run"):
            pipeline, version = self._version(pipeline_ir(config, caching=caching))
            run = self._client.run_pipeline(
                self._experiment(experiment),
                name,
                pipeline_id=pipeline,
                version_id=version,
                service_account=config.cluster.service_account,
            )
        return Submitted(run_id=run.run_id, url=f"{self._host}/#/runs/details/{run.run_id}")

    def run(self, run_id: str) -> ClusterRun:
        """Return the state of a run on the server.

        Raises:
            ClusterError: the run does not exist, or the server cannot be reached.
        """
        with self._told(f"show the run {run_id}"):
            return describe_run(self._client.get_run(run_id))

    def wait(
        self,
        run_id: str,
        show: Callable[[str], None],
        *,
        poll: float = 5.0,
        timeout: float | None = None,
    ) -> ClusterRun:
        """Wait for the end of a run; see ``qatline.pipelines.cluster.progress.follow_run``."""
        return follow_run(lambda: self.run(run_id), show, poll=poll, timeout=timeout)

    def apply_schedule(
        self, config: RunConfig, schedule: Schedule, *, experiment: str
    ) -> Literal["created", "unchanged", "replaced"]:
        """Create, keep or replace the server's schedule of this name.

        Its runs do not use the cluster's cache: with unchanged arguments every step would be
        reused, even with new data.

        Raises:
            ConfigError: the cluster section does not fit the engine's backend.
            ClusterError: the server cannot be reached or refuses.
        """
        account = config.cluster.service_account
        with self._told(f"apply the schedule {schedule.name!r}"):
            pipeline, version = self._version(pipeline_ir(config, caching=False))
            place = self._experiment(experiment)
            found = [job for job in self._jobs() if job.display_name == schedule.name]
            if len(found) == 1 and is_same(
                found[0], schedule, version=version, experiment=place, account=account or ""
            ):
                return "unchanged"
            # Create before deleting: if the server refuses the new schedule, the old one remains.
            self._client.create_recurring_run(
                place,
                schedule.name,
                cron_expression=schedule.cron or None,
                interval_second=schedule.every or None,
                max_concurrency=schedule.max_concurrency,
                no_catchup=True,
                enabled=not schedule.paused,
                pipeline_id=pipeline,
                version_id=version,
                service_account=account,
            )
            for job in found:
                self._client.delete_recurring_run(job.recurring_run_id)
        return "replaced" if found else "created"

    def delete_schedule(self, name: str) -> None:
        """Delete the schedule of this name.

        Raises:
            ConfigError: the schedule does not exist.
            ClusterError: the server cannot be reached or refuses.
        """
        with self._told(f"delete the schedule {name!r}"):
            for job in self._named(name):
                self._client.delete_recurring_run(job.recurring_run_id)

    def pause_schedule(self, name: str) -> None:
        """Pause the schedule of this name; active runs continue.

        Raises:
            ConfigError: the schedule does not exist.
            ClusterError: the server cannot be reached or refuses.
        """
        with self._told(f"pause the schedule {name!r}"):
            for job in self._named(name):
                self._client.disable_recurring_run(job.recurring_run_id)

    def resume_schedule(self, name: str) -> None:
        """Resume the schedule of this name; missed runs are skipped.

        Raises:
            ConfigError: the schedule does not exist.
            ClusterError: the server cannot be reached or refuses.
        """
        with self._told(f"resume the schedule {name!r}"):
            for job in self._named(name):
                self._client.enable_recurring_run(job.recurring_run_id)

    def show_schedule(self, name: str) -> ScheduleDetails:
        """Return the schedule of this name and its latest runs.

        Raises:
            ConfigError: the schedule does not exist.
            ClusterError: the server cannot be reached or refuses.
        """
        with self._told(f"show the schedule {name!r}"):
            job = self._named(name)[0]
            schedule = schedule_of(job)
            if schedule is None:
                raise ConfigError(f"Expected {name!r} to have a trigger; it has none.")
            experiment = self._client.get_experiment(experiment_id=job.experiment_id)
            return ScheduleDetails(
                schedule=schedule,
                experiment=str(experiment.display_name),
                version=version_id(job),
                service_account=job.service_account or "",
                runs=tuple(islice(self._runs_of(job), _LATEST_RUNS)),
            )

    def schedules(self) -> list[Schedule]:
        """Return the schedules of the server."""
        with self._told("list the schedules"):
            found = map(schedule_of, self._jobs())
            return [schedule for schedule in found if schedule is not None]

    def _named(self, name: str) -> list[Any]:
        jobs = list(self._jobs())
        found = [job for job in jobs if job.display_name == name]
        if not found:
            listed = ", ".join(sorted(job.display_name for job in jobs)) or "none"
            raise ConfigError(f"Expected a schedule of this server ({listed}), received {name!r}.")
        return found

    def _jobs(self) -> Iterator[Any]:
        ask = self._client.list_recurring_runs
        yield from _pages(ask, "recurring_runs", namespace=self._namespace)

    def _runs_of(self, job: Any) -> Iterator[ScheduledRun]:
        newest = {"experiment_id": job.experiment_id, "sort_by": "created_at desc"}
        for run in _pages(self._client.list_runs, "runs", **newest):
            if run.recurring_run_id == job.recurring_run_id:
                state = str(run.state or "pending").lower()
                yield ScheduledRun(run_id=run.run_id, started=str(run.created_at), state=state)

    def _experiment(self, name: str) -> str:
        return str(self._client.create_experiment(name, namespace=self._namespace).experiment_id)

    def _version(self, text: str) -> tuple[str, str]:
        """Return the ids of pipeline and version with this content; upload missing ones."""
        # The name identifies the content: equal pipelines are uploaded once.
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "pipeline.yaml"
            package.write_text(text, encoding="utf-8")
            pipeline = self._client.get_pipeline_id(PIPELINE)
            if pipeline is None:
                pipeline = self._client.upload_pipeline(
                    str(package), pipeline_name=PIPELINE, namespace=self._namespace
                ).pipeline_id
            ask = self._client.list_pipeline_versions
            for version in _pages(ask, "pipeline_versions", pipeline_id=pipeline):
                if version.display_name == name:
                    return str(pipeline), str(version.pipeline_version_id)
            uploaded = self._client.upload_pipeline_version(
                str(package), name, pipeline_id=pipeline
            )
        return str(pipeline), str(uploaded.pipeline_version_id)

    def _told(self, what: str) -> AbstractContextManager[None]:
        return client_errors(self._host, what)


def connect(host: str, *, namespace: str = "", token: str | None = None) -> Cluster:
    """Connect to a server after a quick probe.

    Args:
        host: address of the API, such as ``http://localhost:8080``.
        namespace: namespace of the user on a multi-user server.
        token: bearer token, if the server requires one.

    Raises:
        ConfigError: the address contains credentials.
        ClusterError: no server responds, or it is not a Kubeflow Pipelines server.
    """
    client, address = open_kfp_client(host, namespace=namespace, token=token)
    return Cluster(client, address, namespace)


def _pages(ask: Callable[..., Any], key: str, **arguments: Any) -> Iterator[Any]:
    """Yield the items of all pages of a list request."""
    token = ""
    while True:
        page = ask(page_token=token, page_size=_PAGE, **arguments)
        yield from getattr(page, key) or ()
        token = page.next_page_token or ""
        if not token:
            return
