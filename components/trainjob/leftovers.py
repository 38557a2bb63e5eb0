"""TrainJobs left behind by a killed launcher."""

from __future__ import annotations

import logging

from qatline.components.trainjob.job_state import read_job_state
from qatline.components.trainjob.jobs import TrainJobs
from qatline.components.trainjob.kubernetes_api import KubernetesApi, KubernetesError, from_pod

_RETRIES = 6  # within about a minute

_log = logging.getLogger(__name__)


def delete_leftovers(run: str, api: KubernetesApi | None = None) -> list[str]:
    """Delete the unfinished TrainJobs of a pipeline run that has ended.

    Failures are logged.

    Args:
        run: id of the pipeline run.
        api: the Kubernetes API. Default: that of the pod's own cluster.

    Returns:
        The names of the deleted TrainJobs.
    """
    deleted: list[str] = []
    try:
        jobs = TrainJobs(api or from_pod(retries=_RETRIES))
        for job in jobs.of_run(run):
            if not read_job_state(job).ended:
                name = job["metadata"]["name"]
                jobs.delete(name)
                deleted.append(name)
                _log.warning("TrainJob %s is deleted: its pipeline run is over", name)
    except KubernetesError as error:
        _log.warning("TrainJobs of run %s may be left in the cluster: %s", run, error)
    return deleted
