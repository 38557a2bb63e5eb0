"""Execution of a step as a TrainJob: create it, wait for its end, fetch its output.

The TrainJob's name is derived from pipeline run and step. A restarted launcher, for example after
the loss of its node, therefore finds the TrainJob of its predecessor: it waits for a running one,
fetches the output of a complete one, and replaces a failed one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qat_lib.errors import StepError, StorageError
from qatline.components.trainjob.job_state import JobState, read_job_state
from qatline.components.trainjob.jobs import TrainJobs
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError
from qatline.components.trainjob.objects import TASK_ANNOTATION, job_name, train_job
from qatline.components.trainjob.pods import describe_failure, first_failed, list_pods, obstacles
from qatline.components.trainjob.task import JobTemplate, WorkerTask

_PAUSE = 5.0  # seconds between two polls
_REMOVAL = 300.0  # maximum seconds of a deletion

_log = logging.getLogger(__name__)


class TrainJobError(StepError):
    """A TrainJob failed, or disappeared."""


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One step of one pipeline run, as a TrainJob.

    Args:
        api: the Kubernetes API.
        template: TrainJob template of the compiled pipeline.
        task: task of each worker.
        run: id of the pipeline run.
        environment: further variables of the workers.
        sleep: waits between two polls.
    """

    api: KubernetesApi
    template: JobTemplate
    task: WorkerTask
    run: str
    environment: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep

    @property
    def name(self) -> str:
        """Name of the TrainJob."""
        return job_name(self.run, self.task.step)

    @property
    def jobs(self) -> TrainJobs:
        """The TrainJobs of the namespace."""
        return TrainJobs(self.api)

    def run_to_end(self, take_output: Callable[[], None]) -> None:
        """Create the TrainJob or adopt an existing one; wait, and fetch its output.

        Args:
            take_output: fetches and verifies the output; raises StorageError if it is incomplete.

        Raises:
            TrainJobError: the TrainJob failed or was deleted, or its output is incomplete.
            KubernetesError: the server is unreachable or refuses. The TrainJob is kept.
        """
        job = self._create_or_take_up()
        state = self._wait(job["metadata"].get("uid"))
        if state.phase == "failed":
            reason = self._reason(state)
            self._clean_up(keep=self.template.keep != "never")
            raise TrainJobError(reason)
        try:
            take_output()
        except StorageError as error:
            # Delete it: another attempt must not adopt a TrainJob with an incomplete output.
            self._clean_up(keep=False)
            raise TrainJobError(
                f"TrainJob {self.name} is complete, but its output is not: {error}"
            ) from error
        self._clean_up(keep=self.template.keep == "always")

    def cancel(self) -> None:
        """Delete the TrainJob in any state."""
        _log.warning("the step is canceled: TrainJob %s is deleted", self.name)
        self.jobs.delete(self.name)

    def _create_or_take_up(self) -> dict[str, Any]:
        found = self.jobs.find(self.name)
        if found is not None and not self._may_take_up(found):
            self._remove()
            found = None
        if found is not None:
            _log.info("TrainJob %s of an earlier attempt is taken up", self.name)
            return found
        created = self.jobs.create(self._object)
        _log.info("TrainJob %s/%s of %d nodes", self.api.namespace, self.name, self.template.nodes)
        return created

    def _may_take_up(self, job: Mapping[str, Any]) -> bool:
        """Return whether an existing TrainJob executes the same task and can be adopted."""
        meta, state = job["metadata"], read_job_state(job)
        same = (meta.get("annotations") or {}).get(TASK_ANNOTATION) == self.task.digest
        if not same and not state.ended and not meta.get("deletionTimestamp"):
            raise TrainJobError(
                f"Expected no other TrainJob {self.name} in {self.api.namespace}, received one "
                "that runs with other settings. Delete it, or wait for its end: kubectl delete "
                f"trainjob {self.name} -n {self.api.namespace}"
            )
        return same and state.phase != "failed" and not meta.get("deletionTimestamp")

    def _remove(self) -> None:
        """Delete the TrainJob and wait until it and its pods are gone."""
        _log.info("TrainJob %s of an earlier attempt is replaced", self.name)
        self.jobs.delete(self.name)
        waited = 0.0
        while self.jobs.find(self.name) is not None:
            if waited >= _REMOVAL:
                raise TrainJobError(
                    f"TrainJob {self.name} of an earlier attempt still exists after "
                    f"{_REMOVAL:.0f} s. For the reason, see: kubectl get trainjob {self.name} "
                    f"-n {self.api.namespace} -o yaml"
                )
            self.sleep(_PAUSE)
            waited += _PAUSE

    def _object(self, form: str) -> dict[str, Any]:
        return train_job(
            self.template, self.task, run=self.run, environment=self.environment, form=form
        )

    def _wait(self, uid: str | None) -> JobState:
        told: set[str] = set()
        while True:
            job = self.jobs.find(self.name)
            # A different uid means that someone replaced the TrainJob under the same name.
            if job is None or job["metadata"].get("uid") != uid:
                raise TrainJobError(
                    f"TrainJob {self.name} was deleted in {self.api.namespace} while it ran. Run "
                    "the step again."
                )
            state = read_job_state(job)
            self._tell(state, told)
            if state.ended:
                return state
            self.sleep(_PAUSE)

    def _tell(self, state: JobState, told: set[str]) -> None:
        """Log changes: the state, pods that cannot start, the failed pod."""
        lines = [str(state)]
        if not state.ended:
            try:
                pods = list_pods(self.api, self.name)
            except KubernetesError as error:
                # Not fatal: the service account may lack the permission to list pods.
                lines.append(f"its pods can't be seen: {error}")
            else:
                lines += obstacles(pods)
                if (failed := first_failed(pods)) is not None:
                    lines.append(f"pod {failed.name} ended with exit code {failed.code}")
        for line in lines:
            if line not in told:
                told.add(line)
                _log.info("TrainJob %s: %s", self.name, line)

    def _reason(self, state: JobState) -> str:
        lines = [
            f"TrainJob {self.api.namespace}/{self.name} failed: {state.message or 'no reason given'}"
        ]
        try:
            failed = first_failed(list_pods(self.api, self.name))
        except KubernetesError as error:
            lines.append(f"Its pods can't be seen: {error}")
        else:
            if failed is not None:
                lines.append(describe_failure(self.api, failed))
        if self.template.keep != "never":
            lines.append(
                f"It is left there: kubectl describe trainjob {self.name} -n {self.api.namespace}"
            )
        return "\n".join(lines)

    def _clean_up(self, *, keep: bool) -> None:
        if keep:
            return
        try:
            self.jobs.delete(self.name)
        except KubernetesError as error:
            _log.warning("TrainJob %s is left in the cluster: %s", self.name, error)
