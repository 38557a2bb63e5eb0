"""TrainJobs whose launcher was ended before it could delete them."""

from __future__ import annotations

import logging

from qatline.components.trainjob.job_state import read_job_state
from qatline.components.trainjob.jobs import TrainJobs
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError, from_pod

_PATIENCE = 60.0  # seconds

_log = logging.getLogger(__name__)


def delete_leftovers(run: str, api: KubernetesApi | None = None) -> list[str]:
    """Delete the TrainJobs of a pipeline run that have not ended.

    The run is over: nobody waits for them. What keeps them from being deleted is logged.

    Args:
        run: Id of the pipeline run.
        api: The Kubernetes API. Default: the one of the cluster that this process is a pod of.

    Returns:
        Their names.
    """
    deleted: list[str] = []
    try:
        jobs = TrainJobs(api or from_pod(patience=_PATIENCE))
        for job in jobs.of_run(run):
            if not read_job_state(job).ended:
                name = job["metadata"]["name"]
                jobs.delete(name)
                deleted.append(name)
                _log.warning("TrainJob %s is deleted: its pipeline run is over", name)
    except KubernetesError as error:
        _log.warning("TrainJobs of run %s may be left in the cluster: %s", run, error)
    return deleted
