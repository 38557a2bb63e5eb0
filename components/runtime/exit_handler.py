"""End of a pipeline run on a cluster, after success, failure or cancellation.

The handler closes the MLflow run, notifies the webhook and deletes remaining TrainJobs. A failure
of one action does not prevent the others.
"""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.support.credentials import scrub
from qatline.components.support.scrubbed_output import scrub_output
from qatline.components.tracking.tracker import PIPELINE_RUN_VARIABLE, tracking_mode

WEBHOOK_VARIABLE = "QATLINE_WEBHOOK"
"""Address of the webhook; it may be a secret."""

TRAIN_JOBS_VARIABLE = "QATLINE_TRAIN_JOBS"
"""Set if steps run as TrainJobs."""

_STATUS = {"SUCCEEDED": "FINISHED", "CANCELLED": "KILLED", "CANCELED": "KILLED"}
_ATTEMPTS, _PAUSE, _TIMEOUT = 3, 2.0, 10.0  # seconds
_LONGEST_REASON = 2000  # characters

_log = logging.getLogger(__name__)


def close_run(*, state: str, run: str, reason: str = "") -> None:
    """Close the MLflow run of a pipeline run, notify the webhook and delete its TrainJobs.

    The environment selects the store, as for a step, and the webhook, as ``QATLINE_WEBHOOK``.

    Args:
        state: ``SUCCEEDED``, ``FAILED`` or ``CANCELLED``, as reported by Kubeflow.
        run: Kubeflow's name of the run; ``QATLINE_PIPELINE_RUN_ID`` overrides it with the run's id.
        reason: reason of the failure, as reported by Kubeflow.

    Raises:
        TrackingError: tracking is required, and the store is unreachable or refuses. The webhook is
            notified first.
    """
    scrub_output()
    run_id = os.environ.get(PIPELINE_RUN_VARIABLE) or run
    status = _STATUS.get(state, "FAILED")
    reason = scrub(reason)[:_LONGEST_REASON]
    problem: TrackingError | None = None
    mlflow_run: str | None = None
    try:
        mlflow_run = _close_parent(run_id, status, reason)
    except TrackingError as error:
        _log.warning("the MLflow run is not closed: %s", error)
        problem = error
    if os.environ.get(TRAIN_JOBS_VARIABLE):
        from qatline.components.trainjob.jobs import delete_leftovers

        delete_leftovers(run_id)
    if address := os.environ.get(WEBHOOK_VARIABLE):
        tell_webhook(address, _message(run_id, status, reason, mlflow_run))
    # Raised last: neither the TrainJobs nor the webhook depend on MLflow.
    if problem is not None and tracking_mode() == "required":
        raise problem


def tell_webhook(
    address: str, message: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Post a message as JSON; return whether the server accepted it.

    An unreachable webhook is logged and does not fail the run. The log omits its address, a
    possible secret.

    Args:
        address: ``http://`` or ``https://``.
        message: plain JSON types.
        sleep: waits between three attempts.

    Raises:
        ConfigError: the address is not an HTTP address.
    """
    if not address.startswith(("http://", "https://")):
        raise ConfigError(
            f"{WEBHOOK_VARIABLE}: expected an address such as https://hooks.example/run, received "
            "something else."
        )
    request = urllib.request.Request(
        address,
        data=json.dumps(message).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(_PAUSE * attempt)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT):
                return True
        except urllib.error.HTTPError as error:
            with error:
                refusal = f"it answers {error.code}"
        except OSError as error:
            refusal = str(getattr(error, "reason", error))
    _log.warning("the webhook failed %d times: %s", _ATTEMPTS, scrub(refusal))
    return False


def _close_parent(run_id: str, status: str, reason: str) -> str | None:
    if tracking_mode() == "off":
        return None
    from qatline.components.tracking.pipeline_run import close_parent

    return close_parent(run_id, status, reason=reason)


def _message(run_id: str, status: str, reason: str, mlflow_run: str | None) -> dict[str, Any]:
    text = f"qatline run {run_id}: {status.lower()}"
    return {
        "run": run_id,
        "status": status,
        "reason": reason,
        "mlflow_run": mlflow_run or "",
        "text": f"{text}: {reason}" if reason else text,
    }
