"""The verdict of a run on a cluster, which its steps have recorded in MLflow."""

from __future__ import annotations

from typing import Any

from qatline.components.tracking.pipeline_run import RUN_TAG
from qatline.components.tracking.store import open_client, translated


def find_verdict(uri: str, run_id: str) -> str:
    """Return what a run decided: ``promote``, ``reject``, or ``unknown``.

    Args:
        uri: Address of the tracking server.
        run_id: Id of the run in Kubeflow.

    Raises:
        ConfigError: The address holds credentials.
        TrackingError: The server is away or refuses.
    """
    client: Any = open_client(uri)
    with translated("the verdict can't be read"):
        experiments = [each.experiment_id for each in client.search_experiments()]
        wanted = f"tags.`{RUN_TAG}` = '{run_id}'"
        for run in client.search_runs(experiments, filter_string=wanted):
            if verdict := run.data.tags.get("qatline.verdict"):
                return str(verdict)
    return "unknown"
