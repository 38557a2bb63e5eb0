"""Send runs and schedules to a Kubeflow Pipelines server.

Schedules are created or updated by name. The server knows a pipeline ``qatline`` with one version
per content: the same code and config give the same version, so sending it twice uploads it once. A
schedule can't be changed in place there; ``apply_schedule`` compares, and replaces it only where
something differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from components.runtime.credentials import check_address
from pipelines.cluster.compile import pipeline_ir
from pipelines.config.run_config import RunConfig
from qat_lib.errors import ConfigError, QatlineError

PIPELINE = "qatline"
_PROBE_SECONDS = 5.0
_PAGE = 100


class ClusterError(QatlineError, RuntimeError):
    """The Kubeflow Pipelines server can't be reached or refuses."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run that the server has accepted."""

    run_id: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When the pipeline runs again and again.

    Args:
        name: Schedule name, unique on the server.
        cron: Six fields, seconds first, such as ``0 0 2 * * *`` for two o'clock every night.
        max_concurrency: Runs of this schedule at the same time, 1 to 10.
    """

    name: str
    cron: str
    max_concurrency: int = 1

    def __post_init__(self) -> None:
        if len(self.cron.split()) != 6:
            raise ConfigError(
                "Expected cron with six fields, seconds first, such as '0 0 2 * * *'; received "
                f"{self.cron!r}."
            )
        if not 1 <= self.max_concurrency <= 10:
            raise ConfigError(
                f"Expected max_concurrency from 1 to 10, received {self.max_concurrency}."
            )


class Cluster:
    """A Kubeflow Pipelines server.

    Args:
        client: A ``kfp.Client``.
        host: Its address, for links and messages.
        namespace: Where experiments and schedules live; empty on a server for one user.
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
            ConfigError: The cluster section does not fit the engine's backend.
            ClusterError: The server can't be reached or refuses.
        """
        with self._told("start the run"):
            pipeline, version = self._version(pipeline_ir(config, caching=caching))
            run = self._client.run_pipeline(
                self._experiment(experiment), name, pipeline_id=pipeline, version_id=version
            )
        return Submitted(run_id=run.run_id, url=f"{self._host}/#/runs/details/{run.run_id}")

    def apply_schedule(
        self, config: RunConfig, schedule: Schedule, *, experiment: str
    ) -> Literal["created", "unchanged", "replaced"]:
        """Make the server's schedule of this name the given one.

        Its runs don't use the cluster's cache: with unchanged arguments every step would be reused,
        whatever data had come in.

        Raises:
            ConfigError: The cluster section does not fit the engine's backend.
            ClusterError: The server can't be reached or refuses.
        """
        with self._told(f"apply the schedule {schedule.name!r}"):
            pipeline, version = self._version(pipeline_ir(config, caching=False))
            experiment_id = self._experiment(experiment)
            found = [job for job in self._schedules() if job.display_name == schedule.name]
            wanted = (schedule.cron, schedule.max_concurrency, version, experiment_id, "ENABLED")
            if len(found) == 1 and _facts(found[0]) == wanted:
                return "unchanged"
            # The new one first: a server that refuses it must not leave the user without the old
            # one.
            self._client.create_recurring_run(
                experiment_id,
                schedule.name,
                cron_expression=schedule.cron,
                max_concurrency=schedule.max_concurrency,
                no_catchup=True,
                pipeline_id=pipeline,
                version_id=version,
            )
            for job in found:
                self._client.delete_recurring_run(job.recurring_run_id)
        return "replaced" if found else "created"

    def delete_schedule(self, name: str) -> None:
        """Remove the schedule of this name.

        Raises:
            ConfigError: There is none.
            ClusterError: The server can't be reached or refuses.
        """
        with self._told(f"delete the schedule {name!r}"):
            jobs = list(self._schedules())
            found = [job for job in jobs if job.display_name == name]
            if not found:
                listed = ", ".join(sorted(job.display_name for job in jobs)) or "none"
                raise ConfigError(
                    f"Expected a schedule of this server ({listed}), received {name!r}."
                )
            for job in found:
                self._client.delete_recurring_run(job.recurring_run_id)

    def schedules(self) -> list[Schedule]:
        """Return the cron schedules of the server."""
        with self._told("list the schedules"):
            return [
                Schedule(name=job.display_name, cron=facts[0], max_concurrency=facts[1])
                for job in self._schedules()
                if (facts := _facts(job))[0]
            ]

    def _schedules(self) -> Iterator[Any]:
        token = ""
        while True:
            page = self._client.list_recurring_runs(
                page_token=token, page_size=_PAGE, namespace=self._namespace
            )
            yield from page.recurring_runs or ()
            token = page.next_page_token or ""
            if not token:
                return

    def _experiment(self, name: str) -> str:
        return str(self._client.create_experiment(name, namespace=self._namespace).experiment_id)

    def _version(self, text: str) -> tuple[str, str]:
        """Return the pipeline's id and the version id of this content.

        Upload what is missing.
        """
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "pipeline.yaml"
            package.write_text(text, encoding="utf-8")
            pipeline = self._client.get_pipeline_id(PIPELINE)
            if pipeline is None:
                pipeline = self._client.upload_pipeline(
                    str(package), pipeline_name=PIPELINE, namespace=self._namespace
                ).pipeline_id
            token = ""
            while True:
                page = self._client.list_pipeline_versions(
                    pipeline, page_token=token, page_size=_PAGE
                )
                for version in page.pipeline_versions or ():
                    if version.display_name == name:
                        return str(pipeline), str(version.pipeline_version_id)
                token = page.next_page_token or ""
                if not token:
                    break
            uploaded = self._client.upload_pipeline_version(
                str(package), name, pipeline_id=pipeline
            )
        return str(pipeline), str(uploaded.pipeline_version_id)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        from kfp_server_api import ApiException  # type: ignore[import-untyped]
        from urllib3.exceptions import HTTPError

        try:
            # The client prints links to stdout.
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        except ApiException as error:
            raise ClusterError(
                f"The server {self._host} refused to {what}: {_reason(error)}"
            ) from error
        except HTTPError as error:
            raise ClusterError(
                f"The server {self._host} went away: {error}. Could not {what}."
            ) from error


def connect(host: str, *, namespace: str = "", token: str | None = None) -> Cluster:
    """Connect to a server, after a quick look whether it is there.

    The client itself would try for half a minute.

    Args:
        host: Address of the API, such as ``http://localhost:8080``.
        namespace: The user's namespace on a server for several users.
        token: Bearer token, where the server asks for one.

    Raises:
        ConfigError: The address holds credentials.
        ClusterError: Nothing answers, or what answers is no Kubeflow Pipelines server.
    """
    check_address(host, "--host")
    address = host.rstrip("/")
    _probe(address, token)
    import kfp

    with contextlib.redirect_stdout(io.StringIO()):
        client = kfp.Client(host=address, namespace=namespace or "kubeflow", existing_token=token)
    return Cluster(client, address, namespace)


def _probe(address: str, token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{address}/apis/v2beta1/healthz", headers=headers)
        with urllib.request.urlopen(request, timeout=_PROBE_SECONDS) as answer:
            json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            hint = "Give a token." if error.code in (401, 403) else "Check the address."
        raise ClusterError(
            f"Expected a Kubeflow Pipelines server at {address}; it answers {error.code}. {hint}"
        ) from error
    except OSError as error:
        raise ClusterError(
            f"Expected a Kubeflow Pipelines server at {address}; nothing answers "
            f"({getattr(error, 'reason', error)}). Check the address; from outside the cluster: "
            "kubectl port-forward -n kubeflow svc/ml-pipeline 8888"
        ) from error
    except ValueError as error:
        raise ClusterError(
            f"Expected a Kubeflow Pipelines server at {address}; what answers is another service. "
            "Check the address."
        ) from error


def _facts(job: Any) -> tuple[str, int, str, str, str]:
    """What makes a schedule the same.

    When, how often at once, what, where, and whether it is on.
    """
    cron = getattr(getattr(job.trigger, "cron_schedule", None), "cron", None) or ""
    version = getattr(job.pipeline_version_reference, "pipeline_version_id", None) or ""
    return (
        cron,
        int(job.max_concurrency or 1),
        version,
        job.experiment_id or "",
        str(job.status or ""),
    )


def _reason(error: Any) -> str:
    try:
        body = json.loads(error.body or "")
    except ValueError:
        body = {}
    text = body.get("message") or body.get("error") or error.reason or "no reason given"
    return f"{text} ({error.status})"
