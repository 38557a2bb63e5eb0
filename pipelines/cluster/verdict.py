"""Verdict of a run on a cluster, as recorded in MLflow."""

from __future__ import annotations

from typing import Any

from qatline.components.tracking.pipeline_run import RUN_TAG
from qatline.components.tracking.store import open_client, translated


def find_verdict(uri: str, run_id: str) -> str:
    """Return the decision of a run: ``promote``, ``reject``, or ``unknown``.

    Args:
        uri: address of the tracking server.
        run_id: id of the run in Kubeflow.

    Raises:
        ConfigError: the address contains credentials.
        TrackingError: the server is unreachable or refuses.
    """
    client: Any = open_client(uri)
    with translated("the verdict can't be read"):
        experiments = [each.experiment_id for each in client.search_experiments()]
        wanted = f"tags.`{RUN_TAG}` = '{run_id}'"
        for run in client.search_runs(experiments, filter_string=wanted):
            if verdict := run.data.tags.get("qatline.verdict"):
                return str(verdict)
    return "unknown"
